"""Synthetic traces: Poisson arrivals, bursts (gamma-distributed gaps), and closed loops of clients.

A shape is written as `kind:name=number,...`, for instance `poisson:rate=4,requests=1000,prompt=512`
or `closed:concurrency=32,requests=64,prompt=128,output=64`. A length may be a range, `100-900`, of
which every value is as likely.
"""

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from quire.workbench.simulation.traces.trace_error import TraceError
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest

SHARED_CONTENT = 1 << 40
"""The content of the beginning that all prompts of a shape share."""


class LengthRange(NamedTuple):
    """A length is drawn from `least` to `most` tokens, both included."""

    least: int
    most: int


class TraceShape(NamedTuple):
    """A synthetic trace.

    rate: requests a second; the gaps between them have the coefficient of variation `cv`, 1 for
        Poisson arrivals.
    concurrency: clients of a closed loop, each of which sends when it was answered; 0 for an open
        one.
    shared: the tokens that all prompts begin with, beside `prompt` of their own.
    """

    rate: float = 1.0
    cv: float = 1.0
    concurrency: int = 0
    requests: int = 100
    shared: int = 0
    prompt: LengthRange = LengthRange(512, 512)
    output: LengthRange = LengthRange(128, 128)


_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"poisson": ("rate",), "gamma": ("rate", "cv"), "closed": ("concurrency",)}
)
_COMMON = ("requests", "prompt", "output", "shared")


def _number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError
    return int(text)


def _lengths(text: str) -> LengthRange:
    least, dash, most = text.partition("-")
    found = LengthRange(_count(least), _count(most if dash else least))
    if found.least > found.most:
        raise ValueError
    return found


class _Field(NamedTuple):
    parse: Callable[[str], object]
    wanted: str


_NUMBER = _Field(_number, "a number above 0")
_COUNT = _Field(_count, "a whole number of 1 or more")
_LENGTHS = _Field(_lengths, "a number of tokens such as 512, or a range such as 100-900")
_FIELDS: Mapping[str, _Field] = MappingProxyType(
    {
        "rate": _NUMBER,
        "cv": _NUMBER,
        "concurrency": _COUNT,
        "requests": _COUNT,
        "shared": _COUNT,
        "prompt": _LENGTHS,
        "output": _LENGTHS,
    }
)


def is_shape(text: str) -> bool:
    """Return whether a text is a shape, not the name of a file."""
    return text.partition(":")[0] in _KINDS


def parse_shape(text: str) -> TraceShape:
    """Return the shape that a text says. Raises TraceError, which names the field."""
    kind, _, rest = text.partition(":")
    wanted = _KINDS[kind]
    values: dict[str, object] = {}
    for item in filter(None, rest.split(",")):
        name, _, value = item.partition("=")
        if name not in (*wanted, *_COMMON):
            known = ", ".join((*wanted, *_COMMON))
            raise TraceError(f"{kind} has no {name!r}, but {known}")
        field = _FIELDS[name]
        try:
            values[name] = field.parse(value)
        except ValueError:
            raise TraceError(f"{name} is {value!r}, must be {field.wanted}") from None
    missing = [name for name in wanted if name not in values]
    if missing:
        raise TraceError(f"{kind} needs {' and '.join(missing)}, as in {kind}:{missing[0]}=4")
    return TraceShape()._replace(**values)  # type: ignore[arg-type]


def requests_of(shape: TraceShape, seed: int) -> list[TracedRequest]:
    """Return the requests of a shape; equal seeds give equal ones."""
    draw = random.Random(seed)
    now, found = 0.0, []
    form = 1 / shape.cv**2
    for number in range(shape.requests):
        own = PromptPart(number, draw.randint(*shape.prompt))
        parts = (PromptPart(SHARED_CONTENT, shape.shared), own) if shape.shared else (own,)
        found.append(TracedRequest(f"r{number}", now, parts, draw.randint(*shape.output)))
        if not shape.concurrency:
            now += draw.gammavariate(form, 1 / (form * shape.rate))
    return found
