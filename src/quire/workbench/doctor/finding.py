"""A finding of `quire doctor`: what was looked at, whether it is well, and what to do if not."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Level(StrEnum):
    """The state of something. Where anything fails, so does the command."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report.

    advice: what to do; empty where there is nothing to do.
    figures: the numbers of `text`, for programs, each with its unit in its name.
    """

    level: Level
    subject: str
    text: str
    advice: str = ""
    figures: Mapping[str, float] = {}


def ok(subject: str, text: str, figures: Mapping[str, float] | None = None) -> Finding:
    """Return a finding that all is well."""
    return Finding(level=Level.OK, subject=subject, text=text, figures=figures or {})


def warn(subject: str, text: str, advice: str) -> Finding:
    """Return a finding of what works, but not as well as it could."""
    return Finding(level=Level.WARN, subject=subject, text=text, advice=advice)


def fail(subject: str, text: str, advice: str) -> Finding:
    """Return a finding of what does not work."""
    return Finding(level=Level.FAIL, subject=subject, text=text, advice=advice)


class Section(msgspec.Struct, frozen=True):
    """Findings that belong together."""

    name: str
    findings: tuple[Finding, ...]
