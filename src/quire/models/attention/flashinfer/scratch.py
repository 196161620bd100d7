"""An upper bound of what FlashInfer keeps on the device, from the first step on."""

from collections.abc import Sequence

from quire.models.attention.flashinfer.kind import kind_of, why_not_layer
from quire.models.attention.flashinfer.wrappers import PLAN_BYTES, WORKSPACE_BYTES
from quire.models.config import LayerFacts

WRAPPERS_PER_KIND = 3
"""For chunks, for tokens, and what those of all replayed steps share."""


def kept_bytes(layers: Sequence[LayerFacts]) -> int:
    """Return the bytes of the workspace and of a plan for each kind of layer and wrapper."""
    kinds = {
        kind_of(layer, 0, layer.num_kv_heads) for layer in layers if why_not_layer(layer) is None
    }
    return WORKSPACE_BYTES + len(kinds) * WRAPPERS_PER_KIND * PLAN_BYTES
