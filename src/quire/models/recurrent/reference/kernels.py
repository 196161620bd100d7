"""The naive twin of the kernels of recurrent layers."""

from torch import Tensor

from quire.models.recurrent.kernels import DeltaNetInputs, DeltaNetWeights, ScanInputs
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.convolution import causal_conv
from quire.models.recurrent.reference.delta_net import gated_delta_net
from quire.models.recurrent.reference.delta_rule import gated_delta_rule
from quire.models.recurrent.reference.selective_scan import selective_scan
from quire.models.recurrent.reference.state_space import state_space


class ReferenceKernels:
    """Implements `RecurrentKernels` in torch on any device, one token after another. It waits for
    the device at each operation, to know the pieces."""

    is_replayable = False

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
        return causal_conv(rows, weight, bias, states, pieces, is_activated=is_activated)

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
        return gated_delta_rule(query, key, value, decay, beta, states, pieces)

    def gated_delta_net(
        self,
        inputs: DeltaNetInputs,
        weights: DeltaNetWeights,
        states: tuple[Tensor, Tensor],
        pieces: Pieces,
    ) -> Tensor:
        return gated_delta_net(inputs, weights, states, pieces)

    def state_space(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        return state_space(inputs, states, pieces)

    def selective_scan(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        return selective_scan(inputs, states, pieces)
