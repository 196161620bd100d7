"""All layers of a decoder as one call of the C++ kernels, where attention is theirs too."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.models.attention.cpu import CPUAttention, CPUStep
from quire.models.layers.fused_layers import AttentionForward, LayerForward, RotaryEmbeddings
from quire.models.layers.linears import PackedForward
from quire.models.layers.native_mixers import NativeRecurrent
from quire.models.native.decoder.decoder import DecoderKernel
from quire.models.native.decoder.fused import NormParams
from quire.models.recurrent.hook import StateAccess
from quire.models.recurrent.native import NativeRecurrentKernels
from quire.models.recurrent.native_calls import piece_tables
from quire.models.recurrent.native_layers import LayerCall, States


@dataclass(frozen=True, slots=True)
class _Bound:
    """The owners of the memory that the structures of layers have addresses of: attention,
    `weights` by their address, and the states of recurrent layers."""

    backend: CPUAttention
    weights: int
    states: Mapping[int, States] | None

    def is_same(self, other: "_Bound | None") -> bool:
        return (
            other is not None
            and self.backend is other.backend
            and self.weights == other.weights
            and self.states is other.states
        )


@dataclass(slots=True)
class NativeDecoder:
    """The decoder layers of one model, as the C structures that the kernel reads.

    mixers: attention, or a recurrent module, of each layer.
    rotary_kinds: for each layer, which of a step's rotary embeddings are its own.
    last: the norm after the last layer.
    bound, fields: the structures, and what their addresses are of; they are made anew when one of
        these changes.
    kept: further structures that `fields` has addresses of.
    """

    kernel: DecoderKernel
    layers: tuple[LayerForward, ...]
    mixers: tuple[AttentionForward | NativeRecurrent, ...]
    rotary_kinds: tuple[int, ...]
    last: NormParams
    bound: _Bound | None = None
    fields: ctypes.Array[ctypes.Structure] | None = None
    kept: list[LayerCall] = field(default_factory=list)

    def takes(self, access: StateAccess | None) -> bool:
        """Return whether it computes with these states of recurrent layers: with its own kernels,
        or without such layers."""
        if access is None:
            return not any(isinstance(mixer, NativeRecurrent) for mixer in self.mixers)
        return isinstance(access.kernels, NativeRecurrentKernels)

    def run(
        self,
        step: CPUStep,
        access: StateAccess | None,
        states: Tensor,
        rotary: Sequence[RotaryEmbeddings],
        logits_indices: Tensor,
    ) -> Tensor:
        """Run all layers over one step, and return normed states [1, R, hidden_size].

        `states` [1, T, hidden_size] is overwritten; `access` has the states of recurrent layers.
        `rotary` has an entry for each kind of layer. `logits_indices` [R] int64, rising, are the
        tokens whose states are returned. Raises IndexError where a slot, block or recurrent state
        lies outside of its store.
        """
        out = states.new_empty(1, len(logits_indices), states.shape[-1])
        groups, tables = self._tables(step), self._rotary(rotary)
        pieces = None
        if access is not None:
            pieces = piece_tables(self.kernel.library, access.pieces)
            pieces.num_tokens = states.shape[1]
        call = self.kernel.library.struct("DecoderCall")(
            layers=ctypes.addressof(self._bind(step.backend, access)),
            groups=ctypes.addressof(groups),
            rotary=ctypes.addressof(tables),
            states=states.data_ptr(),
            out=out.data_ptr(),
            logits_indices=logits_indices.data_ptr(),
            query_starts=ctypes.addressof(step.query_starts),
            context_lens=ctypes.addressof(step.context_lens),
            pieces=None if pieces is None else ctypes.addressof(pieces),
            last=self._norm(self.last),
            num_layers=len(self.layers),
            hidden_size=states.shape[-1],
            num_tokens=states.shape[1],
            num_logits=len(logits_indices),
            num_seqs=len(step.context_lens),
            is_bf16=states.dtype == torch.bfloat16,
            num_threads=step.backend.library.num_threads,
        )
        size = self.kernel.scratch_bytes(call)
        (scratch,) = step.backend.workspace.take(states, torch.uint8, (size,))
        call.scratch = scratch.data_ptr()
        if self.kernel.run(call):
            raise IndexError("a slot, block or state lies outside its store")
        return out

    def _bind(
        self, backend: CPUAttention, access: StateAccess | None
    ) -> ctypes.Array[ctypes.Structure]:
        address = self.layers[0].mlp.gate_up.weight.packed.data_ptr()
        bound = _Bound(backend, address, None if access is None else access.parts)
        if self.fields is None or not bound.is_same(self.bound):
            self.kept.clear()
            rows = zip(self.layers, self.mixers, self.rotary_kinds, strict=True)
            layers = [self._layer(layer, mixer, kind, bound) for layer, mixer, kind in rows]
            self.fields = (self.kernel.library.struct("DecoderLayer") * len(layers))(*layers)
            self.bound = bound
        return self.fields

    def _tables(self, step: CPUStep) -> ctypes.Array[ctypes.Structure]:
        struct = self.kernel.library.struct("GroupTables")
        return (struct * len(step.tables))(*(struct(*group) for group in step.tables))

    def _rotary(self, rotary: Sequence[RotaryEmbeddings]) -> ctypes.Array[ctypes.Structure]:
        struct = self.kernel.library.struct("RotaryTables")
        fields = (struct(cos.data_ptr(), sin.data_ptr(), cos.shape[-1]) for cos, sin in rotary)
        return (struct * len(rotary))(*fields)

    def _layer(
        self,
        layer: LayerForward,
        mixer: AttentionForward | NativeRecurrent,
        rotary: int,
        bound: _Bound,
    ) -> ctypes.Structure:
        if isinstance(mixer, NativeRecurrent):
            own, inputs = self._recurrent(mixer, bound), mixer.inputs.whole
        else:
            own, inputs = self._attention(mixer, rotary, bound.backend), mixer.qkv
        return self.kernel.library.struct("DecoderLayer")(
            qkv=self._weight(inputs),
            out=self._weight(mixer.out),
            gate_up=self._weight(layer.mlp.gate_up),
            down=self._weight(layer.mlp.down),
            **{name: self._norm(norm) for name, norm in layer.norms._asdict().items()},
            act=layer.mlp.act,
            **own,
        )

    def _attention(
        self, attention: AttentionForward, rotary: int, backend: CPUAttention
    ) -> dict[str, object]:
        heads, facts = attention.heads, attention.hook.layer
        return {
            "query": self._norm(heads.query),
            "key": self._norm(heads.key),
            "query_heads": heads.num_query,
            "head_size": heads.head_size,
            "is_gated": attention.is_gated,
            "rotary": rotary,
            "group": backend.store.table(facts.index),
            "attention": ctypes.addressof(backend.call(facts)),
        }

    def _recurrent(self, mixer: NativeRecurrent, bound: _Bound) -> dict[str, object]:
        assert bound.states is not None, "it is taken"
        call = mixer.layer_call(self.kernel.library, bound.states)
        self.kept.append(call)
        return mixer.fields(call)

    def _weight(self, forward: PackedForward) -> ctypes.Structure:
        weight, bias = forward.weight, forward.bias
        outliers = weight.outliers
        return self.kernel.library.struct("LinearWeight")(
            packed=weight.packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            num_rows=weight.num_rows,
            num_columns=weight.num_columns,
            num_bits=forward.kernel.num_bits,
            outliers=None if outliers is None else outliers.data_ptr(),
        )

    def _norm(self, norm: NormParams | None) -> ctypes.Structure:
        struct = self.kernel.library.struct("NormWeight")
        if norm is None:
            return struct()
        return struct(weight=norm.weight.data_ptr(), epsilon=norm.epsilon, kind=norm.kind)
