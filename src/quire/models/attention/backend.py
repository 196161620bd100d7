"""What every attention backend offers, and what its one test suite checks.

`begin` looks at a step's batch once; each layer then attends within that step. The K and V of all
its tokens are in their slots before any of them is read. Writing first is right because a block is
never used again while a query of this step can still see what it holds: not even a chunk that
spans many windows writes over what its own first queries need.

Block table entries for what no query of the step can see mean nothing, and are never read through.
Of a quantised store, a step's own tokens too are seen as they are kept: what a prompt gives must
not depend on how it was cut into chunks.
"""

from typing import Protocol

from torch import Tensor

from quire.models.batch import Batch
from quire.models.config import LayerFacts


class AttentionStep(Protocol):
    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store the T tokens' `key`, [T, kv heads, k_width], and `value`, [T, kv heads, v_width];
        attend with `query`, [T, heads, k_width]. `LayerFacts` tells what a token sees and how its
        scores are made; `sinks`, [heads], are there if it says so. Returns [T, heads, v_width].

        Latent: the value is the first `v_width` elements of the key, and `value` is not looked at.
        """
        ...


def check_sinks(layer: LayerFacts, sinks: Tensor | None) -> None:
    """Raises ValueError unless they are there where the layer has them."""
    if layer.has_sinks != (sinks is not None):
        raise ValueError(
            f"layer {layer.index} has sinks: {layer.has_sinks}, given: {sinks is not None}"
        )


def dense_rows(tensor: Tensor) -> Tensor:
    """With neighbouring elements side by side, as kernels read them."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class AttentionBackend(Protocol):
    def begin(self, batch: Batch) -> AttentionStep: ...
