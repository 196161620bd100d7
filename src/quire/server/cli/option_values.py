"""Parsers from the text of a flag or a variable to a value; ValueError says what was expected."""

import math
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from quire.engine.config import PriorityTargets
from quire.storage.network.address import parse_address

BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
BYTES = re.compile(r"([1-9][0-9]{,18}) *([KMGT]?)(?:iB)?")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
MAX_COUNT = 10**15
"""The most of what has no bound of its own, far beyond all use: any sum of such counts is exact."""
MAX_BYTES = 1 << 60
MAX_GIB = 1 << 20
MAX_THREADS = 1024
MAX_REPLICAS = 1000
MAX_ENGINES = 64
MAX_SECONDS = 10**9
LEAST_SECONDS = 0.1
LEAST_TARGET_MS = 0.1
TARGETS = ("ttft_ms", "itl_ms")
"""The shortest time that an option may give: deadlines are not checked more often."""


def text(given: str) -> str:
    if not given.strip():
        raise ValueError("must not be empty")
    return given


def http_url(given: str) -> str:
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected a URL of http:// or https://, got {given!r}")
    return given


def host_and_port(given: str) -> str:
    return str(parse_address(given))


def host_and_port_list(given: str) -> tuple[str, ...]:
    return tuple(map(host_and_port, _parts(given)))


def boolean(given: str) -> bool:
    match given.strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError(f"expected true or false, got {given!r}")


def integer(least: int, most: int = MAX_COUNT) -> Callable[[str], int]:
    wanted = f"an integer {least}..{most}"

    def parse(given: str) -> int:
        try:
            value = int(given)
        except ValueError:
            raise ValueError(f"expected {wanted}, got {given!r}") from None
        if not least <= value <= most:
            raise ValueError(f"expected {wanted}, got {value}")
        return value

    return parse


count = integer(1)
threads = integer(1, MAX_THREADS)


def byte_count(given: str) -> int:
    """Return a number of bytes; `1048576`, `1024KiB`, `1MiB` and `1M` are the same."""
    found = BYTES.fullmatch(given.strip())
    if found is None or (given.strip().endswith("iB") and not found[2]):
        raise ValueError(f"expected bytes, such as 1073741824, 1024MiB or 1G, got {given!r}")
    value = int(found[1]) * BINARY[found[2]]
    if value > MAX_BYTES:
        raise ValueError(f"expected {MAX_BYTES} bytes at most, got {given!r}")
    return value


def byte_count_or_none(given: str) -> int:
    """Return a number of bytes, which may be 0."""
    return 0 if given.strip() == "0" else byte_count(given)


def _number(given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"expected a number, got {given!r}")
    return value


def _amount(unit: str, least: float, most: float) -> Callable[[str], float]:
    def parse(given: str) -> float:
        value = _number(given)
        if not least <= value <= most:
            raise ValueError(f"expected {unit}, {least}..{most}, got {given!r}")
        return value

    return parse


seconds = _amount("seconds", 0, MAX_SECONDS)
some_seconds = _amount("seconds", LEAST_SECONDS, MAX_SECONDS)
some_milliseconds = _amount("milliseconds", LEAST_TARGET_MS, MAX_SECONDS * 1000)


def priority_targets(given: str) -> tuple[PriorityTargets, ...]:
    """Return the targets of priorities: `0:ttft_ms=500,itl_ms=40;1:ttft_ms=2000`."""
    found: dict[int, PriorityTargets] = {}
    for part in filter(None, (part.strip() for part in given.split(";"))):
        number, _, targets = part.partition(":")
        try:
            priority = int(number)
        except ValueError:
            raise ValueError(
                f"expected PRIORITY:ttft_ms=N,itl_ms=N, one or both, and a ';' before the next "
                f"priority, got {part!r}"
            ) from None
        if priority in found:
            raise ValueError(f"priority {priority} is given twice")
        found[priority] = PriorityTargets(priority, **_targets(part, targets))
    if not found:
        raise ValueError(f"expected targets such as 0:ttft_ms=500,itl_ms=40, got {given!r}")
    return tuple(found.values())


def _targets(part: str, given: str) -> dict[str, float]:
    """Return the numbers of one priority by their names."""
    targets: dict[str, float] = {}
    for word in given.split(","):
        name, _, number = (each.strip() for each in word.partition("="))
        if name not in TARGETS:
            raise ValueError(f"expected {' or '.join(TARGETS)} in {part!r}, got {name!r}")
        if name in targets:
            raise ValueError(f"{name} is given twice in {part!r}")
        try:
            targets[name] = some_milliseconds(number)
        except ValueError as error:
            raise ValueError(f"{name} in {part!r}: {error}") from None
    return targets


minutes = _amount("minutes", 0, MAX_SECONDS / 60)
gibibytes = _amount("GiB", 0, MAX_GIB)
share = _amount("a share", 0, 1)


def seconds_or_none(given: str) -> float:
    """Return a number of seconds, or None for 0."""
    if 0 < _number(given) < LEAST_SECONDS:
        raise ValueError(f"expected seconds, {LEAST_SECONDS} or more, or 0 for none, got {given!r}")
    return seconds(given)


def fraction(given: str) -> float:
    value = _number(given)
    if not 0 < value <= 1:
        raise ValueError(f"expected a share above 0 and up to 1, got {given!r}")
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(given: str) -> str:
        if given not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {given!r}")
        return given

    return parse


def some_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of names from `choices`, with commas between them."""

    def parse(given: str) -> tuple[str, ...]:
        names = _parts(given)
        for name in names:
            if name not in choices:
                raise ValueError(f"expected some of {', '.join(choices)}, got {name!r}")
        return names

    return parse


def one_number_of(*choices: int) -> Callable[[str], int]:
    parse_text = one_of(*map(str, choices))

    def parse(given: str) -> int:
        return int(parse_text(given.strip()))

    return parse


def named(parse: Callable[[str], str], **also: str) -> Callable[[str], str]:
    """Other names for some values."""

    def parse_name(given: str) -> str:
        return parse(also.get(given, given))

    return parse_name


def _parts(given: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in given.split(",") if part.strip())
    if not parts:
        raise ValueError("must not be empty")
    return parts


def name_list(given: str) -> tuple[str, ...]:
    return _parts(given)


def model_list(given: str) -> tuple[str, ...]:
    """Return the one model of a variable, whose path may hold a comma; the flag may come again."""
    return (text(given),)


def alias_list(given: str) -> tuple[str, ...]:
    return _parts(given)


def key_list(given: str) -> tuple[str, ...]:
    return _parts(given)


def origin_list(given: str) -> tuple[str, ...]:
    """Web origins as browsers send them: `https://example.com`, `app://obsidian.md`."""
    origins = tuple(part.lower().rstrip("/") for part in _parts(given))
    for origin in origins:
        if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
            raise ValueError(
                f"expected an origin such as https://example.com or http://localhost:3000, '*' or "
                f"'null', got {origin!r}"
            )
    return origins


def host_list(given: str) -> tuple[str, ...]:
    hosts = _parts(given)
    for host in hosts:
        if "/" in host:
            raise ValueError(f"expected a host such as example.com, or '*', got {host!r}")
    return hosts
