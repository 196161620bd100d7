"""The operations of recurrent layers by Triton's kernels, on a GPU or in the interpreter."""

from torch import Tensor
from triton import cdiv

from quire.models.recurrent.kernels import DeltaNetInputs, DeltaNetWeights, ScanInputs
from quire.models.recurrent.native_calls import dense
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.triton.convolution_kernel import convolve
from quire.models.recurrent.triton.delta_kernel import apply_delta_rule, norm_heads
from quire.models.recurrent.triton.launch import (
    Launch,
    RuleSizes,
    ScanSizes,
    convolution_launch,
    norm_launch,
    rule_launch,
    scan_launch,
)
from quire.models.recurrent.triton.scan_kernel import scan

VECTOR_BYTES = 16
"""The bytes that a thread loads at once."""


class TritonRecurrentKernels:
    """Implements `RecurrentKernels`. Grids and allocations depend on shapes alone, and nothing
    waits for the device, so that a step can be captured and replayed with other numbers.

    Pieces outside of the rows or of the states are not looked for: a GPU does not tell in time.
    """

    is_replayable = True

    def causal_conv(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        states: Tensor,
        pieces: Pieces,
        *,
        is_activated: bool,
    ) -> Tensor:
        rows, num_seqs = dense(rows), len(pieces.sequences) - 1
        out, (channels, width) = rows.new_empty(rows.shape), weight.shape
        launch = convolution_launch(
            channels,
            width,
            rows.dtype,
            is_activated=is_activated,
            has_one_each=len(rows) == num_seqs,
        )
        if num_seqs:
            convolve[(num_seqs, launch.num_tiles)](
                *(rows, weight.contiguous(), None if bias is None else bias.contiguous()),
                *(states, out, *_of(pieces), rows.stride(0), states.stride(0)),
                **launch.options,
                enable_fp_fusion=False,  # both tiles round alike
            )
        return out

    def gated_delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        decay: Tensor,
        beta: Tensor,
        states: Tensor,
        pieces: Pieces,
    ) -> Tensor:
        query, key, value, decay, beta = map(dense, (query, key, value, decay, beta))
        sizes = RuleSizes(key.shape[1], value.shape[1], key.shape[2], value.shape[2])
        launch = rule_launch(sizes, value.dtype, is_by_channel=decay.dim() == 3, has_gates=False)
        out = value.new_empty(value.shape)
        _launch_rule(
            launch, (query, key, value, decay, beta), (None, None, 1.0), states, out, pieces
        )
        return out

    def gated_delta_net(
        self,
        inputs: DeltaNetInputs,
        weights: DeltaNetWeights,
        states: tuple[Tensor, Tensor],
        pieces: Pieces,
    ) -> Tensor:
        mixed = self.causal_conv(
            inputs.mixed, weights.convolution, None, states[0], pieces, is_activated=True
        )
        gate, (num_tokens, heads, value_size) = dense(inputs.gate), inputs.gate.shape
        sizes = RuleSizes(weights.num_key_heads, heads, states[1].shape[2], value_size)
        key_width = sizes.key_heads * sizes.key_size
        query, key, value = mixed.split_with_sizes(
            [key_width, key_width, heads * value_size], dim=-1
        )
        found, out = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
        _launch_rule(
            rule_launch(sizes, gate.dtype, is_by_channel=False, has_gates=True),
            (query, key, value, dense(inputs.step), dense(inputs.beta)),
            (weights.step_bias, weights.log_rates, weights.beta_scale),
            states[1],
            found,
            pieces,
        )
        norm = norm_launch(
            heads, value_size, gate.dtype, is_product_rounded=weights.norm.dtype is gate.dtype
        )
        num_heads = num_tokens * heads
        if num_heads:
            norm_heads[(cdiv(num_heads, norm.values["AT_ONCE"]),)](
                *(found, gate, weights.norm, out, weights.epsilon, num_heads, gate.stride(0)),
                **norm.options,
            )
        return out

    def state_space(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        _, heads, head_size = inputs.rows.shape
        groups, state_size = inputs.b.shape[1:]
        sizes = ScanSizes(groups, heads, head_size, state_size, is_selective=False)
        return _scan(sizes, inputs, states, pieces)

    def selective_scan(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        sizes = ScanSizes(1, 1, inputs.rows.shape[1], inputs.b.shape[1], is_selective=True)
        return _scan(sizes, inputs, states, pieces)


def _of(pieces: Pieces) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return pieces.starts, pieces.reads, pieces.writes, pieces.sequences


def _launch_rule(
    launch: Launch,
    rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    gates: tuple[Tensor | None, Tensor | None, float],
    states: Tensor,
    out: Tensor,
    pieces: Pieces,
) -> None:
    """Launch `apply_delta_rule` over `rows`: queries, keys, values, decays and betas."""
    num_seqs = len(pieces.sequences) - 1
    bias, rates, scale = gates
    if num_seqs:
        apply_delta_rule[(num_seqs, out.shape[1], launch.num_tiles)](
            *(*rows, bias, rates, states, out, *_of(pieces)),
            *(each.stride(0) for each in (*rows, states)),
            scale,
            **launch.options,
        )


def _scan(sizes: ScanSizes, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
    rows, b, c, steps = map(dense, (inputs.rows, inputs.b, inputs.c, inputs.steps))
    launch = scan_launch(sizes, rows.dtype, _vector(states))
    out, num_seqs = rows.new_empty(rows.shape), len(pieces.sequences) - 1
    skip = None if inputs.skip is None else inputs.skip.contiguous()
    if num_seqs:
        scan[(num_seqs, sizes.heads, launch.num_tiles)](
            *(rows, steps, inputs.rates.contiguous(), b, c, skip, states, out, *_of(pieces)),
            *(each.stride(0) for each in (rows, steps, b, c, states)),
            **launch.options,
        )
    return out


def _vector(states: Tensor) -> int:
    """Return 4 where all rows of states begin at multiples of VECTOR_BYTES, else 1."""
    counts = (states.stride(0), states.shape[-1])
    is_aligned = states.data_ptr() % VECTOR_BYTES == 0
    numbers = VECTOR_BYTES // states.element_size()
    return numbers if is_aligned and all(each % numbers == 0 for each in counts) else 1
