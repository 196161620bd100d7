"""The layers of a plain decoder as one call of the C++ kernels, where attention is theirs too."""

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.models.attention.cpu import CPUAttention, CPUStep
from quire.models.layers.layers import LayerForward
from quire.models.layers.linears import PackedForward
from quire.models.native.decoder.decoder import (
    DecoderFields,
    DecoderKernel,
    LayerFields,
    PlaceFields,
    ScaleFields,
    WeightFields,
)
from quire.models.native.decoder.fused import Scale


@dataclass(slots=True)
class Program:
    """`fields` are of the weights and the store of `bound`, and made anew when these change."""

    kernel: DecoderKernel
    layers: tuple[LayerForward, ...]
    last: Scale
    is_exact: bool
    bound: tuple[CPUAttention | None, int] = (None, 0)
    fields: ctypes.Array[LayerFields] = field(default_factory=LayerFields * 0)

    def run(
        self, step: CPUStep, states: Tensor, turns: tuple[Tensor, Tensor], wanted: Tensor
    ) -> Tensor:
        """`states` [1, T, width], which is computed in, to the normed states of the tokens `wanted`
        [R], rising: [1, R, width]. `turns`: cosines and sines, [1, T, rotary]."""
        self._bind(step.backend)
        out = states.new_empty(1, len(wanted), states.shape[-1])
        places = (PlaceFields * len(step.places))(*(PlaceFields(*place) for place in step.places))
        cosines, sines = turns
        call = DecoderFields(
            layers=ctypes.addressof(self.fields),
            places=ctypes.addressof(places),
            states=states.data_ptr(),
            out=out.data_ptr(),
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            wanted=wanted.data_ptr(),
            query_starts=ctypes.addressof(step.query_starts),
            context_lens=ctypes.addressof(step.context_lens),
            last=_scale(self.last),
            num_layers=len(self.layers),
            width=states.shape[-1],
            rotary=cosines.shape[-1],
            num_tokens=states.shape[1],
            num_wanted=len(wanted),
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

    def _bind(self, backend: CPUAttention) -> None:
        address = self.layers[0].attention.qkv.weight.packed.data_ptr()
        if self.bound[0] is not backend or self.bound[1] != address:
            self.fields = (LayerFields * len(self.layers))(
                *(_layer(layer, backend) for layer in self.layers)
            )
            self.bound = (backend, address)


def _layer(layer: LayerForward, backend: CPUAttention) -> LayerFields:
    heads, facts = layer.attention.heads, layer.attention.port.layer
    return LayerFields(
        qkv=_weight(layer.attention.qkv),
        out=_weight(layer.attention.out),
        gate_up=_weight(layer.mlp.gate_up),
        down=_weight(layer.mlp.down),
        before=_scale(layer.before),
        between=_scale(layer.between),
        query=_scale(heads.query),
        key=_scale(heads.key),
        query_heads=heads.num_query,
        head_width=heads.width,
        act=layer.mlp.act,
        group=backend.store.group(facts.index),
        attention=ctypes.addressof(backend.call(facts)),
    )


def _weight(forward: PackedForward) -> WeightFields:
    weight, bias = forward.weight, forward.bias
    address = None if bias is None else bias.data_ptr()
    return WeightFields(weight.packed.data_ptr(), address, weight.num_rows, weight.num_columns)


def _scale(scale: Scale | None) -> ScaleFields:
    return ScaleFields() if scale is None else ScaleFields(scale.weight.data_ptr(), *scale[1:])
