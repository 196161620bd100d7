"""The time of a step by the roofline model (Williams, Waterman and Patterson, CACM 52:4, 2009): a
part takes as long as its computing or its reading, whichever is slower, since they overlap.
"""

from dataclasses import dataclass

from quire.models.shape import AttentionShape, ExpertShape, ModelShape
from quire.scheduler.pacing.step_work import StepWork
from quire.workbench.simulation.cost.devices import DeviceSpec

QUERY_TILE = 64
"""The queries of a prompt that read a key and its value together."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Estimates the steps of a model on a device. Raises DeviceError where the device's rate in the
    model's dtype is unknown."""

    shape: ModelShape
    device: DeviceSpec

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of a step, its overhead on the host included."""
        device = self.device
        overhead_s = (
            device.step_overhead_s
            + device.layer_overhead_s * self.shape.num_layers
            + device.seq_overhead_s * work.num_seqs
        )
        attention_s = sum(self._attention_s(each, work) for each in self.shape.attention)
        return overhead_s + self._products_s(work) + attention_s

    def _products_s(self, work: StepWork) -> float:
        """Return the seconds of all products with weights. The head meets a row of each sequence.
        Products that read and write activations wait for them."""
        shape, num_tokens = self.shape, work.num_tokens
        num_weights = num_tokens * shape.num_dense_weights + work.num_seqs * shape.num_head_weights
        num_bytes = float(shape.dense_bytes + shape.head_bytes)
        for each in shape.experts:
            num_weights += num_tokens * each.top_k * each.num_weights * each.num_layers
            num_read = each.num_layers * each.num_weights * num_experts_met(each, num_tokens)
            num_bytes += num_read * shape.expert_weight_bytes
        activation_bytes = num_tokens * shape.num_operands * shape.dtype_bytes
        return self._slower_s(2.0 * num_weights, num_bytes) + activation_bytes / self.device.bytes_s

    def _attention_s(self, layers: AttentionShape, work: StepWork) -> float:
        """Return the seconds that layers of one kind attend, for sequences that decode and then for
        prompts."""
        num_flops = 2.0 * (layers.head_size + layers.v_head_size) * layers.num_heads
        decode_pairs, prefill_pairs = _pairs(layers, work)
        seconds = (
            self._slower_s(num_flops * num_pairs, num_pairs / num_queries * layers.token_bytes)
            for num_pairs, num_queries in ((decode_pairs, 1), (prefill_pairs, QUERY_TILE))
        )
        return layers.num_layers * sum(seconds)

    def _slower_s(self, num_flops: float, num_bytes: float) -> float:
        flops_s = self.device.flops_of(self.shape.dtype)
        return max(num_flops / flops_s, num_bytes / self.device.bytes_s)


def num_experts_met(experts: ExpertShape, num_tokens: int) -> float:
    """Return how many different experts of a layer the tokens of a step are expected to meet, if
    routers choose evenly and each token for itself: of E experts, one is left out by a token that
    meets k with the probability 1 - k / E."""
    missed = 1.0 - experts.top_k / experts.num_experts
    return experts.num_experts * (1.0 - missed**num_tokens)


def _pairs(layers: AttentionShape, work: StepWork) -> tuple[float, float]:
    """Return the pairs of a query and a key that it sees, in decoding and in prefill. All decoding
    sequences are taken to have the mean context."""
    size, prefill_pairs = layers.pattern.size, float(work.num_prefill_pairs)
    if size is not None:
        prefill_pairs = min(prefill_pairs, float(work.num_prefill_tokens * size))
    if not work.num_decode_tokens:
        return 0.0, prefill_pairs
    mean = max(work.num_context_tokens // work.num_decode_tokens, 1)
    seen = mean - layers.pattern.first_needed(mean - 1)
    return float(seen * work.num_decode_tokens), prefill_pairs
