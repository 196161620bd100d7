"""Recurrent modules as the kernel of a whole decoder runs them, beside attention."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from quire.models.layers.joined_linears import JoinedForward
from quire.models.layers.linears import PackedForward
from quire.models.native.library import Library
from quire.models.recurrent.family import ModuleCore
from quire.models.recurrent.hook import RecurrentForward
from quire.models.recurrent.kernels import DeltaNetWeights
from quire.models.recurrent.native_layers import (
    LayerCall,
    States,
    delta_net_call,
    short_conv_call,
)

NUM_GATES = 3
"""The projections of a gated delta net behind those that its convolution takes."""


@dataclass(frozen=True, slots=True)
class NativeRecurrent:
    """A recurrent module of the layer `index`, all of whose projections are one product."""

    index: int
    core: ModuleCore
    inputs: JoinedForward
    out: PackedForward

    def layer_call(self, library: Library, states: Mapping[int, States]) -> LayerCall:
        """Return the call over the states of its layer."""
        own, weights = states[self.index], self.core.weights
        if isinstance(weights, DeltaNetWeights):
            return delta_net_call(library, weights, own)
        return short_conv_call(library, weights, own)

    def fields(self, call: LayerCall) -> dict[str, object]:
        """Return the fields of a `DecoderLayer` that are of the module alone."""
        address = ctypes.addressof(call.call)
        if not isinstance(self.core.weights, DeltaNetWeights):
            return {"convolution": address}
        places = self.inputs.starts[-NUM_GATES:]
        return {
            "delta_net": address,
            **dict(zip(("gate_at", "beta_at", "step_at"), places, strict=True)),
        }


def native_recurrent(forward: RecurrentForward) -> NativeRecurrent | None:
    """Return a module for the kernel, None where that has none for it or not all of its linear
    layers are packed."""
    core, joined = forward.family.core(forward.part), forward.joined
    if core is None or not isinstance(joined, JoinedForward):
        return None
    out: object = vars(forward.part.get_submodule(core.output)).get("forward")
    if not isinstance(out, PackedForward):
        return None
    if isinstance(core.weights, DeltaNetWeights) and any(joined.gaps[: -NUM_GATES - 1]):
        return None
    return NativeRecurrent(forward.index, core, joined, out)
