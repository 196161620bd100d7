"""Synthetic traces: Poisson arrivals, bursts (gamma-distributed gaps), closed loops of clients, and
sessions of agents, each turn of which but the last calls tools.

A shape is written as `kind:name=number,...`, for instance `poisson:rate=4,requests=1000,prompt=512`
or `closed:concurrency=32,requests=64,prompt=128,output=64`. A length may be a range, `100-900`, of
which every value is as likely.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from quire.workbench.simulation.traces.trace_error import TraceError
from quire.workbench.simulation.traces.traced_request import (
    LaterTurn,
    PromptPart,
    TracedRequest,
)

SHARED_CONTENT = 1 << 40
"""The content of the beginning that all prompts of a shape share."""
FIRST_GROWTH = 1 << 41
"""The first content of what later turns have more."""


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
    turns: the turns of a session; the prompt of each has `growth` tokens more than what was said
        before. A request of the trace is a session then.
    """

    rate: float = 1.0
    cv: float = 1.0
    concurrency: int = 0
    requests: int = 100
    shared: int = 0
    prompt: LengthRange = LengthRange(512, 512)
    output: LengthRange = LengthRange(128, 128)
    turns: int = 1
    growth: LengthRange = LengthRange(512, 512)


_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "poisson": ("rate",),
        "gamma": ("rate", "cv"),
        "closed": ("concurrency",),
        "agents": ("rate", "turns"),
    }
)
_COMMON = ("requests", "prompt", "output", "shared")
_OF_AGENTS = ("growth",)
GAPS_S = ((0.86, 0.05, 1.0), (0.95, 1.0, 10.0), (1.0, 10.0, 100.0))
"""The gaps before an agent's next call: up to these shares of them lie between so many seconds, as
likely at each power. 86 % come within a second, 95 % within ten (measured for vLLM's router, issue
285); nothing is published of the others."""


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
        "turns": _COUNT,
        "growth": _LENGTHS,
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
        known_names = (*wanted, *_COMMON, *(_OF_AGENTS if kind == "agents" else ()))
        if name not in known_names:
            known = ", ".join(known_names)
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
        request = TracedRequest(f"r{number}", now, parts, draw.randint(*shape.output))
        found.append(_session(request, shape, draw) if shape.turns > 1 else request)
        if not shape.concurrency:
            now += draw.gammavariate(form, 1 / (form * shape.rate))
    return found


def _session(first: TracedRequest, shape: TraceShape, draw: random.Random) -> TracedRequest:
    """Return the first turn of a session, with the later ones."""
    content = FIRST_GROWTH + int(first.id[1:]) * shape.turns
    later = tuple(
        LaterTurn(
            gap_s(draw),
            PromptPart(content + number, draw.randint(*shape.growth)),
            draw.randint(*shape.output),
        )
        for number in range(1, shape.turns)
    )
    return replace(first, id=f"{first.id}.0", later=later, is_turn=True)


def gap_s(draw: random.Random) -> float:
    """Return the seconds between an answer that calls tools and the next turn."""
    chance = draw.random()
    _, least_s, most_s = next(each for each in GAPS_S if chance <= each[0])
    return float(least_s * (most_s / least_s) ** draw.random())
