"""The operations of recurrent layers by the C++ kernels of `models/native/recurrent`, on CPUs."""

import ctypes

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.recurrent.kernels import DeltaNetInputs, DeltaNetWeights, ScanInputs
from quire.models.recurrent.native_calls import NativeCalls, check_tensor, dense
from quire.models.recurrent.pieces import Pieces


class NativeRecurrentKernels:
    """Implements `RecurrentKernels` for tensors of NATIVE_DTYPES on the CPU, on as many threads as
    torch uses.

    All methods raise ValueError for a tensor of another dtype or shape, and IndexError for pieces
    that lie outside of the rows and for states that do not exist; nothing has been written then.
    """

    is_replayable = False

    def __init__(self, library: Library) -> None:
        self._calls = NativeCalls(library)

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
        rows, weight = dense(rows), weight.contiguous()
        out, (channels, width) = rows.new_empty(rows.shape), weight.shape
        call = self._convolution(rows, weight, out)
        call.is_activated = is_activated
        if bias is not None:
            bias = bias.contiguous()
            check_tensor("bias", bias, rows.dtype, (channels,))
            call.bias = bias.data_ptr()
        shape = (channels, width - 1)
        store = self._calls.use_states("convolution", call, rows, states, shape, pieces)
        self._calls.run("convolution", call, store)
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
        num_tokens, heads, value_size = value.shape
        key_heads, key_size = key.shape[1:]
        query, key, value = dense(query), dense(key), dense(value)
        decay, beta = dense(decay), dense(beta)
        for name, tensor in (("query", query), ("key", key)):
            check_tensor(name, tensor, value.dtype, (num_tokens, key_heads, key_size))
        is_by_channel = decay.dim() == 3
        of_channels = (key_size,) if is_by_channel else ()
        check_tensor("decay", decay, torch.float32, (num_tokens, heads, *of_channels))
        check_tensor("beta", beta, value.dtype, (num_tokens, heads))
        _check_shares(heads, key_heads, "value heads", "key heads")
        out, shape = value.new_empty(value.shape), (heads, key_size, value_size)
        call = self._calls.new(
            "delta_rule",
            query=query.data_ptr(),
            key=key.data_ptr(),
            value=value.data_ptr(),
            decay=decay.data_ptr(),
            beta=beta.data_ptr(),
            out=out.data_ptr(),
            query_stride=query.stride(0),
            key_stride=key.stride(0),
            value_stride=value.stride(0),
            decay_stride=decay.stride(0),
            beta_stride=beta.stride(0),
            key_heads=key_heads,
            heads=heads,
            key_size=key_size,
            value_size=value_size,
            is_by_channel=is_by_channel,
        )
        store = self._calls.use_states("delta_rule", call, value, states, shape, pieces)
        self._calls.run("delta_rule", call, store)
        return out

    def gated_delta_net(
        self,
        inputs: DeltaNetInputs,
        weights: DeltaNetWeights,
        states: tuple[Tensor, Tensor],
        pieces: Pieces,
    ) -> Tensor:
        inputs = DeltaNetInputs(*map(dense, inputs))
        convolution = weights.convolution.contiguous()
        norm, bias, rates = _floats(weights, inputs.gate.shape)
        num_tokens, heads, _ = inputs.gate.shape
        for name, tensor in (("step", inputs.step), ("beta", inputs.beta)):
            check_tensor(name, tensor, inputs.gate.dtype, (num_tokens, heads))
        convolved = inputs.mixed.new_empty(inputs.mixed.shape)
        first = self._convolution(inputs.mixed, convolution, convolved)
        first.is_activated = True
        out = inputs.gate.new_empty(inputs.gate.shape)
        matrix = (heads, *states[1].shape[2:])
        second = self._rule_of_convolved(convolved, weights.num_key_heads, matrix, out)
        decays, betas = bias.new_empty(num_tokens, heads), out.new_empty(num_tokens, heads)
        second.decay, second.beta = decays.data_ptr(), betas.data_ptr()
        call = self._calls.new(
            "delta_net",
            convolution=ctypes.addressof(first),
            rule=ctypes.addressof(second),
            steps=inputs.step.data_ptr(),
            betas=inputs.beta.data_ptr(),
            gate=inputs.gate.data_ptr(),
            step_bias=bias.data_ptr(),
            log_rates=rates.data_ptr(),
            norm_weight=norm.data_ptr(),
            decays=decays.data_ptr(),
            opened=betas.data_ptr(),
            step_stride=inputs.step.stride(0),
            beta_stride=inputs.beta.stride(0),
            gate_stride=inputs.gate.stride(0),
            is_product_rounded=weights.norm.dtype is out.dtype,
            beta_scale=weights.beta_scale,
            epsilon=weights.epsilon,
        )
        shape = (convolution.shape[0], convolution.shape[1] - 1)
        tails = self._calls.use_states("convolution", first, convolved, states[0], shape, pieces)
        matrices = self._calls.use_states("delta_rule", second, out, states[1], matrix, pieces)
        self._calls.run("delta_net", call, tails, matrices)
        return out

    def state_space(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        num_tokens, heads, head_size = inputs.rows.shape
        groups, state_size = inputs.b.shape[1:]
        _check_shares(heads, groups, "heads", "groups")
        call = self._calls.new(
            "scan", heads=heads, head_size=head_size, groups=groups, state_size=state_size
        )
        of_heads = ((num_tokens, heads), (heads,), (heads,))
        return self._scan(call, inputs, of_heads, states, (heads, head_size, state_size), pieces)

    def selective_scan(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        num_tokens, channels = inputs.rows.shape
        state_size = inputs.b.shape[1]
        call = self._calls.new(
            "scan",
            heads=1,
            head_size=channels,
            groups=1,
            state_size=state_size,
            is_selective=True,
        )
        of_channels = ((num_tokens, channels), (channels, state_size), (channels,))
        return self._scan(call, inputs, of_channels, states, (channels, state_size), pieces)

    def _convolution(self, rows: Tensor, weight: Tensor, out: Tensor) -> ctypes.Structure:
        channels, width = weight.shape
        check_tensor("rows", rows, rows.dtype, (rows.shape[0], channels))
        check_tensor("weight", weight, rows.dtype, (channels, width))
        return self._calls.new(
            "convolution",
            rows=rows.data_ptr(),
            weight=weight.data_ptr(),
            out=out.data_ptr(),
            row_stride=rows.stride(0),
            channels=channels,
            width=width,
        )

    def _rule_of_convolved(
        self, convolved: Tensor, key_heads: int, matrix: tuple[int, ...], out: Tensor
    ) -> ctypes.Structure:
        """Return the call for queries, keys and values that lie side by side."""
        heads, key_size, value_size = matrix
        channels, key_width = convolved.shape[1], key_heads * key_size
        _check_shares(heads, key_heads, "value heads", "key heads")
        expected = (len(out), 2 * key_width + heads * value_size)
        check_tensor("mixed", convolved, out.dtype, expected)
        check_tensor("gate", out, out.dtype, (len(out), heads, value_size))
        first, key_bytes = convolved.data_ptr(), key_width * convolved.element_size()
        return self._calls.new(
            "delta_rule",
            query=first,
            key=first + key_bytes,
            value=first + 2 * key_bytes,
            out=out.data_ptr(),
            query_stride=channels,
            key_stride=channels,
            value_stride=channels,
            decay_stride=heads,
            beta_stride=heads,
            key_heads=key_heads,
            heads=heads,
            key_size=key_size,
            value_size=value_size,
        )

    def _scan(
        self,
        call: ctypes.Structure,
        inputs: ScanInputs,
        shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
        states: Tensor,
        state_shape: tuple[int, ...],
        pieces: Pieces,
    ) -> Tensor:
        """Run a scan whose sizes `call` has. `shapes` are those of steps, rates and skip."""
        rows, b, c = dense(inputs.rows), dense(inputs.b), dense(inputs.c)
        steps, rates = dense(inputs.steps), inputs.rates.contiguous()
        for name, tensor in (("b", b), ("c", c)):
            check_tensor(name, tensor, rows.dtype, (rows.shape[0], *inputs.b.shape[1:]))
        for name, tensor, shape in zip(("steps", "rates"), (steps, rates), shapes, strict=False):
            check_tensor(name, tensor, torch.float32, shape)
        out = rows.new_empty(rows.shape)
        call.rows, call.row_stride = rows.data_ptr(), rows.stride(0)
        call.b, call.b_stride = b.data_ptr(), b.stride(0)
        call.c, call.c_stride = c.data_ptr(), c.stride(0)
        call.steps, call.step_stride = steps.data_ptr(), steps.stride(0)
        call.rates, call.out = rates.data_ptr(), out.data_ptr()
        skip = inputs.skip
        if skip is not None:
            skip = skip.contiguous()
            check_tensor("skip", skip, torch.float32, shapes[2])
            call.skip = skip.data_ptr()
        store = self._calls.use_states("scan", call, rows, states, state_shape, pieces)
        self._calls.run("scan", call, store)
        return out


def _check_shares(num_heads: int, num_shared: int, heads: str, shared: str) -> None:
    if num_heads % num_shared:
        raise ValueError(f"{num_heads} {heads} cannot share {num_shared} {shared} equally")


def _floats(weights: DeltaNetWeights, gate: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return norm, step bias and rates in float32."""
    found = (weights.norm.float(), weights.step_bias.float(), weights.log_rates.float())
    _, heads, value_size = gate
    names = ("norm", "step_bias", "log_rates")
    for name, tensor, size in zip(names, found, (value_size, heads, heads), strict=True):
        check_tensor(name, tensor, torch.float32, (size,))
    return found
