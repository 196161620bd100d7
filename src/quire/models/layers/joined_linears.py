"""Linear layers of one input as one product: their packed weights become views of one."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from quire.models.layers.linears import PackedForward


@dataclass(frozen=True, slots=True)
class JoinedForward:
    """Linear layers of one input whose packed weights are one.

    sizes: how the outputs divide that of `whole`: each width, and behind each but the last the
        columns that are of no layer, because a weight ends before its panel does.
    """

    whole: PackedForward
    sizes: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """The columns of the product with which the outputs begin."""
        return tuple(sum(self.sizes[:i]) for i in range(0, len(self.sizes), 2))

    @property
    def gaps(self) -> tuple[int, ...]:
        """The columns of no layer behind each output but the last."""
        return self.sizes[1::2]

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs [..., width] of `x` [..., K], views of one product."""
        return self.whole(x).split_with_sizes(self.sizes, -1)[::2]


def join_dense(forwards: Sequence[PackedForward]) -> PackedForward | None:
    """Join linear layers into one whose output is theirs, one beside the other. None where they
    cannot be, as `join_linears`, or where there would be more between their outputs."""
    panel_rows = forwards[0].kernel.panel_rows
    if any(each.weight.num_rows % panel_rows for each in forwards[:-1]):
        return None
    joined = join_linears(forwards)
    return None if joined is None else joined.whole


def join_linears(forwards: Sequence[PackedForward]) -> JoinedForward | None:
    """Join linear layers. None where their kernels or inputs are not the same, or where their
    kernel cannot multiply them at once."""
    kernel, weights = forwards[0].kernel, [each.weight for each in forwards]
    if any(each.kernel is not kernel for each in forwards):
        return None
    if len({weight.num_columns for weight in weights}) > 1:
        return None
    whole = kernel.join(weights) if len(weights) > 1 else weights[0]
    if whole is None:
        return None
    sizes = [
        size
        for width in (weight.num_rows for weight in weights)
        for size in (width, -width % kernel.panel_rows)
    ][:-1]
    return JoinedForward(PackedForward(kernel, whole, _bias(forwards, sizes)), tuple(sizes))


def _bias(forwards: Sequence[PackedForward], sizes: Sequence[int]) -> Tensor | None:
    """Return the biases of all columns of a joined product: zeros for those without one."""
    found = [each.bias for each in forwards]
    if all(bias is None for bias in found):
        return None
    whole = forwards[0].weight.packed.new_zeros(sum(sizes))
    for place, bias in zip(whole.split_with_sizes(list(sizes))[::2], found, strict=True):
        if bias is not None:
            place.copy_(bias)
    return whole
