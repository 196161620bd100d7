"""Draws the next token of each row of a step. What a row draws depends on its logits, its tokens
and its options alone, bit for bit, whatever runs beside it.

bans, biases -> penalties -> the likeliest, or temperature -> min_p -> top_k -> top_p -> one drawn

On one machine. The C++ kernels' exponentials may differ from torch's in the last bit, and then a
weight in its last: the noise of one draw in millions may fall between the two.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from quire.engine.sampling.sampling_state import SamplingState
from quire.scheduler.request import TokenLogprobs


class SamplerOutput(NamedTuple):
    """One entry per row. Where `not_finite`, the logits held NaN or +inf or left nothing to draw:
    the token id is 0 and means nothing, and there are no log probabilities.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    not_finite: list[bool]


class PendingSample(Protocol):
    """A draw that the device may still be computing."""

    @property
    def token_ids(self) -> Tensor:
        """int64 [rows], on the device of the logits."""

    def result(self) -> SamplerOutput:
        """Waits for it."""


class Sampler(Protocol):
    def sample(self, logits: Tensor, rows: Sequence[SamplingState]) -> PendingSample:
        """Draw one token for each row of `logits` [rows, vocab_size], of any float type; they are
        only read, and not once this has returned.
        """

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        """Of each row of `logits` the token `token_ids[row]` and the `num_top` likeliest, equals by
        rising id: log probabilities of the model's own distribution, before anything a request asks
        of it. A row that is not finite gives NaN."""
