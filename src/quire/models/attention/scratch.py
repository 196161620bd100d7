"""An upper bound of the reference backend's allocations in a step beside the activations.

It is counted for the worst step that the limits allow, in which every sequence has the longest
context:

- the workspace of gathered K and V, and of the quantised numbers before they are decoded;
- plans, for each block table and attention pattern: slots of all tokens that are seen, and masks of
  padded buckets;
- one mask of QUERY_TILE queries for each window or chunk size, and what it takes to make it;
- the memory of the largest layer: K or V padded to one head size, and packed by the fused kernel;
  float32 keys, and scores where the kernel is written out; what decoding takes, scales, and numbers
  of the step's own tokens.

Queries and outputs, whole or in pieces, are as large as the activations and counted there. Not
counted is what torch's fused kernels keep for themselves besides: on a CPU a megabyte or so per
thread, and of a latent layer a packed copy for each query head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quire.models.attention.plan import QUERY_TILE, mask_width, max_bucket_tokens
from quire.models.attention.softmax import is_written_out, max_scores
from quire.models.config import KVOptions, LayerFacts, layout_of

FLOAT32_BYTES = 4
INDEX_BYTES = 8
INDEX_TEMPORARIES = 6
"""Index tensors of one bucket or chunk that are alive at once while its slots are worked out."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of every step."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def num_seqs(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class StepKind:
    """The way in which steps are computed; `dtype` is the model's, however K and V are stored."""

    dtype: torch.dtype
    is_quantised: bool
    is_eager: bool
    device_type: str

    @property
    def dtype_bytes(self) -> int:
        return self.dtype.itemsize

    @property
    def num_products(self) -> int:
        """The number of float32 copies of decoded K or V that are alive at once.

        Where float16 meets float32 scales, a CPU's TensorIterator (compute_types) copies the
        factor, and the result too, in place or not; bfloat16 meets its own. A GPU casts as it goes;
        one is kept there in reserve.
        """
        if self.device_type == "cpu":
            return 2 if self.dtype == torch.float16 else 0
        return 1 if self.dtype_bytes < FLOAT32_BYTES else 0


def scratch_bytes(layers: Sequence[LayerFacts], limits: StepLimits, kind: StepKind) -> int:
    """Return the upper bound in bytes."""
    if not layers:
        return 0
    scratch = _Scratch(limits, kind)
    return (
        max(scratch.gathered_bytes(layer) for layer in layers)
        + max(scratch.number_bytes(layer) for layer in layers)
        + max(scratch.layer_bytes(layer) for layer in layers)
        + scratch.plan_bytes(layers)
        + scratch.mask_bytes(layers)
    )


@dataclass(frozen=True, slots=True)
class _Scratch:
    limits: StepLimits
    kind: StepKind

    def is_plain(self, layer: LayerFacts) -> bool:
        return self.kind.is_eager or is_written_out(layer)

    def num_seen(self, layer: LayerFacts) -> int:
        """Return the maximum number of tokens that one query attends to."""
        return min(self.limits.max_model_len, layer.pattern.size or self.limits.max_model_len)

    def num_gathered(self, layer: LayerFacts) -> int:
        """Return the tokens of the largest bucket, or of the longest chunk with its context."""
        seen = self.num_seen(layer)
        bucket = min(max_bucket_tokens(self.kind.device_type), self.limits.num_seqs * seen)
        chunk = min(self.limits.max_model_len, seen - 1 + self.limits.max_num_batched_tokens)
        return max(seen, bucket, chunk)

    def gathered_bytes(self, layer: LayerFacts) -> int:
        elements = layer.head_size + (0 if layer.is_latent else layer.v_head_size)
        return self.num_gathered(layer) * layer.num_kv_heads * elements * self.kind.dtype_bytes

    def number_bytes(self, layer: LayerFacts) -> int:
        """Return the bytes of one-byte numbers: keys or values, since they are decoded in turn."""
        if not self.kind.is_quantised:
            return 0
        return (
            self.num_gathered(layer) * layer.num_kv_heads * max(layer.head_size, layer.v_head_size)
        )

    def layer_bytes(self, layer: LayerFacts) -> int:
        if self.is_plain(layer):
            attending = self._plain_bytes(layer)
        else:
            attending = self._padded_bytes(layer) + self._packed_bytes(layer)
        return max(self._codec_bytes(layer), attending)

    def _padded_bytes(self, layer: LayerFacts) -> int:
        if layer.is_latent or layer.head_size == layer.v_head_size:
            return 0
        head_size = max(layer.head_size, layer.v_head_size)
        return self.num_gathered(layer) * layer.num_kv_heads * head_size * self.kind.dtype_bytes

    def _packed_bytes(self, layer: LayerFacts) -> int:
        """Return the bytes of K and V of an even head size and number of rows: torch's
        FlashAttentionKernel.cpp (key_t_reorder, value_t_reorder) lays them out for 16 queries and
        more, if the CPU has AMX for the dtype; counted on any."""
        if self.kind.device_type != "cpu" or self.kind.dtype_bytes != 2:
            return 0
        head_size = max(layer.head_size, layer.v_head_size)
        num_rows = (self.num_gathered(layer) + self.limits.num_seqs) * layer.num_kv_heads
        return 2 * num_rows * (head_size + head_size % 2) * self.kind.dtype_bytes

    def _plain_bytes(self, layer: LayerFacts) -> int:
        """Return the bytes of float32 keys, contiguous values, scores, weights in the model's dtype
        if that is another, and a float32 mask."""
        num_rows = self.num_gathered(layer) * layer.num_kv_heads
        copies = num_rows * (
            layer.head_size * FLOAT32_BYTES + layer.v_head_size * self.kind.dtype_bytes
        )
        weight_bytes = self.kind.dtype_bytes if self.kind.dtype_bytes < FLOAT32_BYTES else 0
        scores = max_scores(self.kind.device_type, num_rows) * (FLOAT32_BYTES + weight_bytes)
        return copies + scores + QUERY_TILE * self.num_seen(layer) * FLOAT32_BYTES

    def _codec_bytes(self, layer: LayerFacts) -> int:
        """Return the larger of what reading takes (scales, and float32 products) and writing: a
        step's own tokens as absolute values, in float32 twice, and as numbers."""
        if not self.kind.is_quantised:
            return 0
        heads, head_size = layer.num_kv_heads, max(layer.head_size, layer.v_head_size)
        products = self.kind.num_products * head_size * FLOAT32_BYTES
        read = self.num_gathered(layer) * heads * (2 * FLOAT32_BYTES + products)
        element = self.kind.dtype_bytes + 2 * FLOAT32_BYTES + 1
        written = (
            self.limits.max_num_batched_tokens * heads * (head_size * element + 4 * FLOAT32_BYTES)
        )
        return max(read, written)

    def plan_bytes(self, layers: Sequence[LayerFacts]) -> int:
        """Return the bytes of one plan for each block table and pattern; no step makes more."""
        places = layout_of(layers, KVOptions(), self.kind.dtype_bytes).layer_places()
        plans = {
            (places[layer.index].table, layer.pattern, self.is_plain(layer)): layer
            for layer in layers
        }
        making = max(self.num_gathered(layer) for layer in layers)
        kept = sum(self._one_plan_bytes(layer) for layer in plans.values())
        return kept + making * INDEX_TEMPORARIES * INDEX_BYTES

    def _one_plan_bytes(self, layer: LayerFacts) -> int:
        num_seqs, seen = self.limits.num_seqs, self.num_seen(layer)
        num_slots = min(
            num_seqs * self.limits.max_model_len,
            num_seqs * (seen - 1) + self.limits.max_num_batched_tokens,
        )
        return num_slots * INDEX_BYTES + num_seqs * seen * self.kind.dtype_bytes

    def mask_bytes(self, layers: Sequence[LayerFacts]) -> int:
        if self.limits.max_num_batched_tokens == 1:
            return 0
        reaches = {layer.pattern for layer in layers}
        widths = [mask_width(reach, self.limits.max_model_len) for reach in reaches]
        return QUERY_TILE * (
            sum(widths) * self.kind.dtype_bytes + max(widths) * self._making_bytes()
        )

    def _making_bytes(self) -> int:
        """Return the bytes for each element of a mask that is made: two booleans, and on a GPU an
        aligned copy that its kernel may need."""
        return max(2, 0 if self.kind.device_type == "cpu" else self.kind.dtype_bytes)
