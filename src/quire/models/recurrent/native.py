"""The operations of recurrent layers by the C++ kernels of `models/native/recurrent`, on CPUs."""

import ctypes

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.recurrent.kernels import ScanInputs
from quire.models.recurrent.pieces import Pieces

NATIVE_DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of inputs and results."""


class NativeRecurrentKernels:
    """Implements `RecurrentKernels` for tensors of NATIVE_DTYPES on the CPU, on as many threads as
    torch uses.

    All methods raise ValueError for a tensor of another dtype or shape, and IndexError for pieces
    that lie outside of the rows and for states that do not exist; nothing has been written then.
    The scratch memory of the threads is kept.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._structs = {
            name: library.struct(name)
            for name in (
                "StatePieces",
                "StateStore",
                "ConvolutionCall",
                "DeltaRuleCall",
                "ScanCall",
            )
        }
        self._functions = {
            name: library.function(f"quire_{name}")
            for name in ("convolution", "delta_rule", "scan")
        }
        self._count_scratch = {
            name: library.function(f"quire_{name}_scratch") for name in self._functions
        }
        self._scratch_bytes: dict[tuple[object, ...], int] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._pieces: tuple[Pieces, ctypes.Structure] | None = None

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
        channels, width = weight.shape
        rows, weight = _dense(rows), weight.contiguous()
        _check("rows", rows, rows.dtype, (rows.shape[0], channels))
        _check("weight", weight, rows.dtype, (channels, width))
        out = rows.new_empty(rows.shape)
        call = self._structs["ConvolutionCall"](
            rows=rows.data_ptr(),
            weight=weight.data_ptr(),
            out=out.data_ptr(),
            row_stride=rows.stride(0),
            channels=channels,
            width=width,
            is_activated=is_activated,
        )
        if bias is not None:
            bias = bias.contiguous()
            _check("bias", bias, rows.dtype, (channels,))
            call.bias = bias.data_ptr()
        self._run("convolution", call, rows, states, (channels, width - 1), pieces)
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
        query, key, value = _dense(query), _dense(key), _dense(value)
        decay, beta = _dense(decay), _dense(beta)
        for name, tensor in (("query", query), ("key", key)):
            _check(name, tensor, value.dtype, (num_tokens, key_heads, key_size))
        is_by_channel = decay.dim() == 3
        of_channels = (key_size,) if is_by_channel else ()
        _check("decay", decay, torch.float32, (num_tokens, heads, *of_channels))
        _check("beta", beta, value.dtype, (num_tokens, heads))
        if heads % key_heads:
            raise ValueError(f"{heads} value heads cannot share {key_heads} key heads equally")
        out = value.new_empty(value.shape)
        call = self._structs["DeltaRuleCall"](
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
        self._run("delta_rule", call, value, states, (heads, key_size, value_size), pieces)
        return out

    def state_space(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        num_tokens, heads, head_size = inputs.rows.shape
        groups, state_size = inputs.b.shape[1:]
        if heads % groups:
            raise ValueError(f"{heads} heads cannot share {groups} groups equally")
        call = self._structs["ScanCall"](
            heads=heads, head_size=head_size, groups=groups, state_size=state_size
        )
        of_heads = ((num_tokens, heads), (heads,), (heads,))
        return self._scan(call, inputs, of_heads, states, (heads, head_size, state_size), pieces)

    def selective_scan(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        num_tokens, channels = inputs.rows.shape
        state_size = inputs.b.shape[1]
        call = self._structs["ScanCall"](
            heads=1, head_size=channels, groups=1, state_size=state_size, is_selective=True
        )
        of_channels = ((num_tokens, channels), (channels, state_size), (channels,))
        return self._scan(call, inputs, of_channels, states, (channels, state_size), pieces)

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
        rows, b, c = _dense(inputs.rows), _dense(inputs.b), _dense(inputs.c)
        steps, rates = _dense(inputs.steps), inputs.rates.contiguous()
        for name, tensor in (("b", b), ("c", c)):
            _check(name, tensor, rows.dtype, (rows.shape[0], *inputs.b.shape[1:]))
        for name, tensor, shape in zip(("steps", "rates"), (steps, rates), shapes, strict=False):
            _check(name, tensor, torch.float32, shape)
        out = rows.new_empty(rows.shape)
        call.rows, call.row_stride = rows.data_ptr(), rows.stride(0)
        call.b, call.b_stride = b.data_ptr(), b.stride(0)
        call.c, call.c_stride = c.data_ptr(), c.stride(0)
        call.steps, call.step_stride = steps.data_ptr(), steps.stride(0)
        call.rates, call.out = rates.data_ptr(), out.data_ptr()
        skip = inputs.skip
        if skip is not None:
            skip = skip.contiguous()
            _check("skip", skip, torch.float32, shapes[2])
            call.skip = skip.data_ptr()
        self._run("scan", call, rows, states, state_shape, pieces)
        return out

    def _run(
        self,
        name: str,
        call: ctypes.Structure,
        rows: Tensor,
        states: Tensor,
        state_shape: tuple[int, ...],
        pieces: Pieces,
    ) -> None:
        if rows.dtype not in NATIVE_DTYPES:
            raise ValueError(f"the kernels have no {rows.dtype}, but float32 and bfloat16")
        num_states, num_rows = states.shape[0], rows.shape[0]
        _check("states", states, torch.float32, (num_states, *state_shape))
        if not _is_dense(states):
            raise ValueError("each of the states must be contiguous")
        store = self._structs["StateStore"](states.data_ptr(), num_states, states.stride(0))
        tables = self._tables(pieces)
        tables.num_tokens = num_rows
        call.pieces, call.store = ctypes.addressof(tables), ctypes.addressof(store)
        call.is_bf16, call.num_threads = rows.dtype is torch.bfloat16, self._library.num_threads
        call.scratch = self._scratch_address(name, call, state_shape)
        if self._functions[name](call):
            raise IndexError(
                f"the pieces of {num_rows} rows lie outside of them, or outside of the "
                f"{num_states} states"
            )

    def _tables(self, pieces: Pieces) -> ctypes.Structure:
        """Return the structure of the pieces, which all layers of a step share."""
        if self._pieces is not None and self._pieces[0] is pieces:
            return self._pieces[1]
        num_pieces, num_seqs = len(pieces.reads), len(pieces.sequences) - 1
        for name, length in (
            ("starts", num_pieces + 1),
            ("reads", num_pieces),
            ("writes", num_pieces),
            ("sequences", num_seqs + 1),
        ):
            tensor: Tensor = getattr(pieces, name)
            _check(name, tensor, torch.int32, (length,))
            if not tensor.is_contiguous():
                raise ValueError(f"{name} of the pieces must be contiguous")
        tables = self._structs["StatePieces"](
            pieces.starts.data_ptr(),
            pieces.reads.data_ptr(),
            pieces.writes.data_ptr(),
            pieces.sequences.data_ptr(),
            num_pieces,
            num_seqs,
        )
        self._pieces = (pieces, tables)
        return tables

    def _scratch_address(
        self, name: str, call: ctypes.Structure, state_shape: tuple[int, ...]
    ) -> int:
        """Return the address of memory for all threads of the call."""
        key = (name, *state_shape)
        if key not in self._scratch_bytes:
            self._scratch_bytes[key] = self._count_scratch[name](call)
        needed = self._scratch_bytes[key] * call.num_threads
        if self._scratch.nbytes < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        return self._scratch.data_ptr()


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu:
        raise ValueError(
            f"{name}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, must be {dtype} "
            f"{shape} on the CPU"
        )


def _dense(rows: Tensor) -> Tensor:
    """Return rows that are contiguous each, however far they lie apart."""
    return rows if _is_dense(rows) else rows.contiguous()


def _is_dense(rows: Tensor) -> bool:
    if rows.is_contiguous():
        return True
    strides, shape = rows.stride(), rows.shape
    return strides[-1] == 1 and (rows.dim() < 3 or _follow(strides[1:], shape[1:]))


def _follow(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether elements of this shape follow each other without gaps."""
    return all(
        strides[i] == strides[i + 1] * shape[i + 1] or shape[i] == 1 for i in range(len(shape) - 1)
    )
