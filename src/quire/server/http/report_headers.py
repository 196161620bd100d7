"""Headers that tell a client what of its request had no effect."""

from collections.abc import Iterator, Sequence

WARNINGS = "x-quire-warnings"
IGNORED = "x-quire-ignored"
MAX_PATHS = 16
"""Paths that the header lists; of more it tells the number."""
MAX_PATH_CHARS = 120


def report_headers(warnings: Sequence[str], ignored: Sequence[str]) -> dict[str, str]:
    """Return the headers for warnings, which are sentences, and for the paths of what was left out.
    There is none for what is empty."""
    reports = {WARNINGS: "; ".join(map(_plain, warnings)), IGNORED: ", ".join(_shown(ignored))}
    return {name: text for name, text in reports.items() if text}


def _shown(paths: Sequence[str]) -> Iterator[str]:
    for path in paths[:MAX_PATHS]:
        yield _plain(path)[:MAX_PATH_CHARS].replace(",", "?")
    if len(paths) > MAX_PATHS:
        yield f"{len(paths) - MAX_PATHS} more"


def _plain(text: str) -> str:
    """Return a text as a header holds it: a key of the client's may have any characters."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)
