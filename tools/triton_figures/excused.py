"""The programs that fall short and are left so, each with its reason."""

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A program of a case of a package's kernels, for a compute capability."""

    kernels: str
    labels: tuple[str, ...]
    program: str
    capability: int

    def __str__(self) -> str:
        labels = "; ".join(self.labels)
        return f"{self.kernels}, {self.program}, {labels}, {self.capability / 10}"


REASONS: Mapping[tuple[str, str], str] = {}
"""By the first label of a case and the program."""


def why_excused(place: Place) -> str | None:
    """Return why a program may fall short, None if it may not."""
    return REASONS.get((place.labels[0], place.program))
