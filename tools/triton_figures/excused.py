"""The programs that fall short and are left so, each with its reason."""

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A program of a case of a package's kernels, for a compute capability, by a Triton."""

    kernels: str
    labels: tuple[str, ...]
    program: str
    capability: int
    triton: str = ""

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
OLDER = (
    "Triton 3.6 gives it more registers than 3.7 does: some bytes go to memory, or a program less "
    "runs at once"
)
OF_OLDER = frozenset(
    {
        *((("128, chunks", "bf16, int8"), "chunks"), (("128", "fp32"), "chunks")),
        *((("192 and 128", "bf16"), "chunks"), (("192 and 128", "fp32"), "chunks")),
        *((("256, window, cap", "bf16"), "chunks"), (("256", "bf16"), "chunks")),
        *((("576, latent", "fp32"), "chunks"), (("576, latent", "fp32"), "tokens")),
        *((("128, chunks", "bf16"), "tokens"), (("192 and 128", "fp32"), "tokens")),
        *(
            (("576, latent, 16 heads", "bf16"), "tokens"),
            (("576, latent, 16 heads", "fp32"), "tokens"),
        ),
    }
)
"""Programs that fall short with Triton 3.6 alone, which torch 2.11 brings, by labels and name."""


def why_excused(place: Place) -> str | None:
    """Return why a program may fall short, None if it may not."""
    if place.triton.startswith("3.6.") and (place.labels, place.program) in OF_OLDER:
        return OLDER
    return REASONS.get((place.labels, place.program))
