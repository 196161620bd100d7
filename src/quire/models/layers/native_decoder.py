"""All layers of a plain decoder as one call of the C++ kernels, where attention is theirs too."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.attention.cpu import CPUAttention, CPUStep
from quire.models.layers.fused_layers import LayerForward
from quire.models.layers.linears import PackedForward
from quire.models.native.decoder.decoder import DecoderKernel
from quire.models.native.decoder.fused import NormParams


@dataclass(slots=True)
class NativeDecoder:
    """The decoder layers of one model, as the C structures that the kernel reads.

    last: the norm after the last layer.
    is_exact: the packed weights are the model's numbers; else they are quantised to int8.
    bound, fields: the structures, and the attention backend and weights that their addresses are
        of; they are made anew when one of these changes.
    """

    kernel: DecoderKernel
    layers: tuple[LayerForward, ...]
    last: NormParams
    is_exact: bool
    bound: tuple[CPUAttention | None, int] = (None, 0)
    fields: ctypes.Array[ctypes.Structure] | None = None

    def run(
        self, step: CPUStep, states: Tensor, rotary: tuple[Tensor, Tensor], logits_indices: Tensor
    ) -> Tensor:
        """Run all layers over one step, and return normed states [1, R, hidden_size].

        `states` [1, T, hidden_size] is overwritten. `rotary` is (cos, sin), each
        [1, T, rotary_dim]. `logits_indices` [R] int64, rising, are the tokens whose states are
        returned. Raises IndexError where a slot or block lies outside of its store.
        """
        out = states.new_empty(1, len(logits_indices), states.shape[-1])
        groups = self._tables(step)
        cos, sin = rotary
        call = self.kernel.library.struct("DecoderCall")(
            layers=ctypes.addressof(self._bind(step.backend)),
            groups=ctypes.addressof(groups),
            states=states.data_ptr(),
            out=out.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            logits_indices=logits_indices.data_ptr(),
            query_starts=ctypes.addressof(step.query_starts),
            context_lens=ctypes.addressof(step.context_lens),
            last=self._norm(self.last),
            num_layers=len(self.layers),
            hidden_size=states.shape[-1],
            rotary_dim=cos.shape[-1],
            num_tokens=states.shape[1],
            num_logits=len(logits_indices),
            num_seqs=len(step.context_lens),
            is_int8=not self.is_exact,
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
        address = self.layers[0].attention.qkv.weight.packed.data_ptr()
        if self.fields is None or self.bound[0] is not backend or self.bound[1] != address:
            layers = [self._layer(layer, backend) for layer in self.layers]
            self.fields = (self.kernel.library.struct("DecoderLayer") * len(layers))(*layers)
            self.bound = (backend, address)
        return self.fields

    def _tables(self, step: CPUStep) -> ctypes.Array[ctypes.Structure]:
        struct = self.kernel.library.struct("GroupTables")
        return (struct * len(step.groups))(*(struct(*group) for group in step.groups))

    def _layer(self, layer: LayerForward, backend: CPUAttention) -> ctypes.Structure:
        heads, facts = layer.attention.heads, layer.attention.hook.layer
        return self.kernel.library.struct("DecoderLayer")(
            qkv=self._weight(layer.attention.qkv),
            out=self._weight(layer.attention.out),
            gate_up=self._weight(layer.mlp.gate_up),
            down=self._weight(layer.mlp.down),
            before=self._norm(layer.before),
            between=self._norm(layer.between),
            query=self._norm(heads.query),
            key=self._norm(heads.key),
            query_heads=heads.num_query,
            head_size=heads.head_size,
            act=layer.mlp.act,
            group=backend.store.group(facts.index),
            attention=ctypes.addressof(backend.call(facts)),
        )

    def _weight(self, forward: PackedForward) -> ctypes.Structure:
        weight, bias = forward.weight, forward.bias
        return self.kernel.library.struct("LinearWeight")(
            packed=weight.packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            num_rows=weight.num_rows,
            num_columns=weight.num_columns,
        )

    def _norm(self, norm: NormParams | None) -> ctypes.Structure:
        struct = self.kernel.library.struct("NormWeight")
        if norm is None:
            return struct()
        return struct(weight=norm.weight.data_ptr(), epsilon=norm.epsilon, kind=norm.kind)
