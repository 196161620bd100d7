"""Holds a commit's message to CONTRIBUTING.md: `python -m tools.commit_message FILE`, as a hook."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MOST_CHARS = 72
UNFINISHED = re.compile(r"\b(wip|fixup!|squash!|tmp)", re.IGNORECASE)


def faults(message: str) -> Iterator[str]:
    """Yield what is wrong with a message, a sentence each."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, *rest = lines or [""]
    if not subject.strip():
        yield "it has no subject"
    if len(subject) > MOST_CHARS:
        yield f"its subject has {len(subject)} characters, at most {MOST_CHARS} are read"
    if UNFINISHED.match(subject.strip()):
        yield "its subject says that it is not finished"
    if rest and rest[0].strip():
        yield "its second line is not empty"
    if not any(line.strip() for line in rest):
        yield "it has no body: why, and what was measured or run"


def main(paths: list[str]) -> int:
    found = list(faults(Path(paths[0]).read_text(encoding="utf-8")))
    for fault in found:
        print(f"the commit message: {fault}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
