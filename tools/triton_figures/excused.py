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


WIDENED = (
    "a latent in bytes is widened once for both of its products; Triton does not compile the loop "
    "with more stages"
)
REASONS: Mapping[tuple[tuple[str, ...], str], str] = {
    ((latent, kept), "chunks"): WIDENED
    for latent in ("576, latent", "576, latent, 16 heads")
    for kept in ("bf16, fp8_e4m3", "bf16, int8")
}
"""By the labels of a case of attention and the program."""


def why_excused(place: Place) -> str | None:
    """Return why a program may fall short, None if it may not."""
    return REASONS.get((place.labels, place.program))
