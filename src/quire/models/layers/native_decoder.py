"""All layers of a decoder as one call of the C++ kernels, where attention is theirs too."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.attention.cpu import CPUAttention, CPUStep
from quire.models.layers.fused_layers import AttentionForward, LayerForward, RotaryEmbeddings
from quire.models.layers.linears import PackedForward
from quire.models.native.decoder.decoder import DecoderKernel
from quire.models.native.decoder.fused import NormParams


@dataclass(slots=True)
class NativeDecoder:
    """The decoder layers of one model, as the C structures that the kernel reads.

    rotary_kinds: for each layer, which of a step's rotary embeddings are its own.
    last: the norm after the last layer.
    bound, fields: the structures, and the attention backend and weights that their addresses are
        of; they are made anew when one of these changes.
    """

    kernel: DecoderKernel
    layers: tuple[LayerForward, ...]
    rotary_kinds: tuple[int, ...]
    last: NormParams
    bound: tuple[CPUAttention | None, int] = (None, 0)
    fields: ctypes.Array[ctypes.Structure] | None = None

    def run(
        self,
        step: CPUStep,
        states: Tensor,
        rotary: Sequence[RotaryEmbeddings],
        logits_indices: Tensor,
    ) -> Tensor:
        """Run all layers over one step, and return normed states [1, R, hidden_size].

        `states` [1, T, hidden_size] is overwritten. `rotary` has an entry for each kind of layer.
        `logits_indices` [R] int64, rising, are the tokens whose states are
        returned. Raises IndexError where a slot or block lies outside of its store.
        """
        out = states.new_empty(1, len(logits_indices), states.shape[-1])
        groups, tables = self._tables(step), self._rotary(rotary)
        call = self.kernel.library.struct("DecoderCall")(
            layers=ctypes.addressof(self._bind(step.backend)),
            groups=ctypes.addressof(groups),
            rotary=ctypes.addressof(tables),
            states=states.data_ptr(),
            out=out.data_ptr(),
            logits_indices=logits_indices.data_ptr(),
            query_starts=ctypes.addressof(step.query_starts),
            context_lens=ctypes.addressof(step.context_lens),
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
            raise IndexError("a slot or block lies outside its store")
        return out

    def _bind(self, backend: CPUAttention) -> ctypes.Array[ctypes.Structure]:
        address = _attention_of(self.layers[0]).qkv.weight.packed.data_ptr()
        if self.fields is None or self.bound[0] is not backend or self.bound[1] != address:
            pairs = zip(self.layers, self.rotary_kinds, strict=True)
            layers = [self._layer(layer, kind, backend) for layer, kind in pairs]
            self.fields = (self.kernel.library.struct("DecoderLayer") * len(layers))(*layers)
            self.bound = (backend, address)
        return self.fields

    def _tables(self, step: CPUStep) -> ctypes.Array[ctypes.Structure]:
        struct = self.kernel.library.struct("GroupTables")
        return (struct * len(step.tables))(*(struct(*group) for group in step.tables))

    def _rotary(self, rotary: Sequence[RotaryEmbeddings]) -> ctypes.Array[ctypes.Structure]:
        struct = self.kernel.library.struct("RotaryTables")
        fields = (struct(cos.data_ptr(), sin.data_ptr(), cos.shape[-1]) for cos, sin in rotary)
        return (struct * len(rotary))(*fields)

    def _layer(self, layer: LayerForward, rotary: int, backend: CPUAttention) -> ctypes.Structure:
        attention = _attention_of(layer)
        heads, facts = attention.heads, attention.hook.layer
        return self.kernel.library.struct("DecoderLayer")(
            qkv=self._weight(attention.qkv),
            out=self._weight(attention.out),
            gate_up=self._weight(layer.mlp.gate_up),
            down=self._weight(layer.mlp.down),
            **{name: self._norm(norm) for name, norm in layer.norms._asdict().items()},
            query=self._norm(heads.query),
            key=self._norm(heads.key),
            query_heads=heads.num_query,
            head_size=heads.head_size,
            act=layer.mlp.act,
            rotary=rotary,
            group=backend.store.table(facts.index),
            attention=ctypes.addressof(backend.call(facts)),
        )

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


def _attention_of(layer: LayerForward) -> AttentionForward:
    """Return the attention of a layer, which has one: layers with recurrent modules are not run by
    the kernel."""
    assert isinstance(layer.attention, AttentionForward)
    return layer.attention
