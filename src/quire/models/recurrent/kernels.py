"""The operations of recurrent layers over packed rows: what a family of kernels computes.

Every operation goes through the tokens of a sequence one by one, in float32, each a function of the
token and the state before it alone. So the state after a token is the same to the bit however the
sequence is cut into pieces and steps, and whatever is beside it.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from quire.models.recurrent.pieces import Pieces


class ScanInputs(NamedTuple):
    """The inputs of a scan: `rows`, `b` and `c` in the model's dtype, and in float32 the `steps`,
    which are positive, the `rates`, which are negative, and `skip` if there is any."""

    rows: Tensor
    steps: Tensor
    rates: Tensor
    b: Tensor
    c: Tensor
    skip: Tensor | None


class DeltaNetInputs(NamedTuple):
    """The projections of T rows for a gated delta net, in the model's dtype.

    mixed: [T, 2 Hk Dk + Hv Dv], queries, keys and values before their convolution.
    gate: [T, Hv, Dv]. beta, step: [T, Hv], before their functions.
    """

    mixed: Tensor
    gate: Tensor
    beta: Tensor
    step: Tensor


class DeltaNetWeights(NamedTuple):
    """The weights of a gated delta net between its projections.

    convolution: [2 Hk Dk + Hv Dv, K]. log_rates, step_bias: [Hv]. norm: [Dv], with its `epsilon`.
    num_key_heads: Hk.
    beta_scale: the largest beta.
    """

    convolution: Tensor
    log_rates: Tensor
    step_bias: Tensor
    norm: Tensor
    epsilon: float
    num_key_heads: int
    beta_scale: float


class ShortConvWeights(NamedTuple):
    """The weights of a short convolution between its gates: `weight` [C, K], and `bias` [C] or
    None."""

    weight: Tensor
    bias: Tensor | None


class RecurrentKernels(Protocol):
    """Operations over T packed rows; `states` [num_states, ...] are float32 and updated as `pieces`
    say. Their first dimension may have any stride; the others are contiguous. Inputs are of the
    model's dtype unless stated otherwise, and so are results.

    is_replayable: whether the numbers of `pieces` are read on the device alone, so that a step can
        be captured. A piece that writes the null state is then padding, and leaves no state.
    """

    @property
    def is_replayable(self) -> bool: ...

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
        """Return the causal convolution [T, C] of `rows` [T, C], each channel with its own `weight`
        [C, K], through SiLU if it `is_activated`. `states` [num_states, C, K - 1] hold the last
        K - 1 rows, the oldest first."""
        ...

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
        """Return the outputs [T, Hv, Dv] of the gated delta rule (arXiv 2412.06464).

        query, key: [T, Hk, Dk], where each head serves Hv / Hk value heads that follow each other.
            Both are divided by their L2 norms (epsilon 1e-6 within the root), and the query by the
            root of Dk.
        value: [T, Hv, Dv]. beta: [T, Hv]. decay: float32, the logarithm, [T, Hv] or for each
            channel of a key [T, Hv, Dk] (Kimi delta attention, arXiv 2510.26692).
        states: [num_states, Hv, Dk, Dv].

            S = exp(decay) * S;  S += key (x) beta * (value - S^T key);  output = S^T query
        """
        ...

    def gated_delta_net(
        self,
        inputs: DeltaNetInputs,
        weights: DeltaNetWeights,
        states: tuple[Tensor, Tensor],
        pieces: Pieces,
    ) -> Tensor:
        """Return the outputs [T, Hv, Dv] of a gated delta net before its last projection: the
        causal convolution through SiLU, the gated delta rule, and the norm of each head.

        states: those of the convolution and of the delta rule.

            decay = -exp(log_rates) * softplus(step + step_bias);  beta = beta_scale * sigmoid(beta)
            output = norm * RMSNorm(delta rule) * SiLU(gate)

        Numbers are rounded to the model's dtype after the convolution, in beta, after the delta
        rule and RMSNorm, where `norm` is of that dtype after its product, and at the end.
        """
        ...

    def state_space(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        """Return the outputs [T, H, P] of Mamba-2's state space (arXiv 2405.21060).

        inputs: rows [T, H, P], steps [T, H], rates [H], B and C [T, G, N], where each group serves
            H / G heads that follow each other, and skip [H].
        states: [num_states, H, P, N].

            S = exp(step * rate) * S + step * row (x) B;  output = S C + skip * row
        """
        ...

    def selective_scan(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        """Return the outputs [T, C] of Mamba's selective scan (arXiv 2312.00752).

        inputs: rows [T, C], steps [T, C], rates [C, N], B and C [T, N], and skip [C].
        states: [num_states, C, N].

            S = exp(step * rate) * S + step * row (x) B;  output = S C + skip * row
        """
        ...
