"""The sampler's interface: it samples the next token of each row of a step.

The sample of a row depends only on its logits, its tokens and its parameters, bit for bit, in any
batch (batch invariance):

bans, biases -> penalties -> argmax, or temperature -> min_p -> top_k -> top_p -> one sampled token

This holds on one machine. The exponentials of the C++ kernels may differ from torch's in the last
bit, and then a weight in its last: one sampled token in millions may differ between the two.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from quire.engine.sampling.sampling_state import SamplingState
from quire.scheduler.request import TokenLogprobs


class SamplerOutput(NamedTuple):
    """The sampled tokens, one entry per row.

    Where `not_finite`, the logits held NaN or +inf or left no token to sample: the token id is a
    meaningless 0, and there are no log probabilities.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    not_finite: list[bool]


class PendingSample(Protocol):
    """Sampled tokens that the device may still be computing."""

    @property
    def token_ids(self) -> Tensor:
        """int64 [rows], on the device of the logits."""

    def result(self) -> SamplerOutput:
        """Wait for the tokens and return them."""


class Sampler(Protocol):
    """Samples tokens and computes log probabilities."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingState]) -> PendingSample:
        """Sample one token for each row of `logits` [rows, vocab_size], of any float type. They are
        only read, and no more once this has returned.
        """

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        """Return the log probabilities of `token_ids[row]` and of the `num_top` most likely tokens,
        equal ones by rising id, for each row of `logits`: those of the model's own distribution,
        before temperature and logits processors, with the rank of `token_ids[row]`. A row that is
        not finite gives NaN."""
