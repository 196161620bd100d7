"""Reads API keys from flags and from a file of lines `KEY [NAME [WEIGHT]] [rpm=N] [tpm=N]
[ttft_ms=N] [itl_ms=N]`. Errors never show a key.

Blank lines of the file, lines that begin with `#`, and a byte-order mark are passed over.
"""

import math
import re
from pathlib import Path

from quire.server.config import ApiKey, InvalidOption

NUMBERS = ("rpm", "tpm", "ttft_ms", "itl_ms")
"""Requests and tokens a minute, and targets of milliseconds to the first token and between tokens:
the only words of a line with a `=`, the key left out."""
_NUMBER = re.compile(r"[1-9][0-9]{,11}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def read_api_keys(from_options: tuple[str, ...], path: str | None) -> tuple[ApiKey, ...]:
    """Return the keys, those of flag or variable first. Raises InvalidOption with the file's line
    at fault."""
    keys = [ApiKey(key) for key in dict.fromkeys(from_options)]
    if path is None:
        return tuple(keys)
    num_from_options = len(keys)
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"--api-key-file: cannot read {path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            keys.append(_read_line(line.split(), keys))
        except ValueError as error:
            raise InvalidOption(f"--api-key-file: {path} line {number}: {error}") from None
    if len(keys) == num_from_options:
        raise InvalidOption(f"--api-key-file: {path} holds no key")
    return tuple(keys)


def _read_line(words: list[str], before: list[ApiKey]) -> ApiKey:
    key, *others = words
    numbers = _numbers([word for word in others if "=" in word])
    named = [word for word in others if "=" not in word]
    if len(named) > 2:
        raise ValueError(f"expected KEY [NAME [WEIGHT]] and numbers, got {1 + len(named)} words")
    name, weight = (*named, None, None)[:2]
    if key in [each.key for each in before]:
        raise ValueError("the key is given twice")
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError("a name has up to 64 letters, digits, '.', '_' and '-'")
    if name is not None and name in [each.name for each in before]:
        raise ValueError("the name is that of another key")
    return ApiKey(key, name, _weight(weight), *map(numbers.get, NUMBERS))


def _numbers(words: list[str]) -> dict[str, int]:
    """Return the numbers by their names, from words such as `rpm=60`."""
    numbers: dict[str, int] = {}
    for word in words:
        name, _, given = word.partition("=")
        if name not in NUMBERS:
            raise ValueError(f"known numbers are {', '.join(f'{each}=N' for each in NUMBERS)}")
        if name in numbers:
            raise ValueError(f"{name} is given twice")
        if not _NUMBER.fullmatch(given):
            raise ValueError(f"{name} is an integer of 1 or more, in 12 digits at most")
        numbers[name] = int(given)
    return numbers


def _weight(given: str | None) -> float:
    try:
        weight = 1.0 if given is None else float(given)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError("a weight is a number above 0")
    return weight
