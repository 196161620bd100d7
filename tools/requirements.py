"""Prints the requirements of pyproject.toml, one a line: `python -m tools.requirements [EXTRA]`.

Without EXTRA it is what Quire needs to serve, else what the extra adds to that.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def requirements(extra: str | None = None) -> list[str]:
    """Raises ValueError where there is no such extra."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    if extra is None:
        return list(project["dependencies"])
    if extra not in extras:
        raise ValueError(f"pyproject.toml has no extra {extra!r}: there is {', '.join(extras)}")
    return extras[extra]


def main(argv: Sequence[str]) -> int:
    try:
        lines = requirements(*argv[:1])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
