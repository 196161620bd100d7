"""A step that was launched, and the running requests that its chunks belong to."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from quire.engine.pooling import PendingVectors, PooledSpans, PromptPooling
from quire.engine.sampling.requested_tokens import PendingTokenLogits
from quire.engine.sampling.sampler import PendingSample
from quire.engine.sampling.sampling_state import SamplingState
from quire.scheduler.request import TokenLogprobs
from quire.scheduler.step import Step, StepFailure, StepLaunch

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RequestRow:
    """One running request: the index of its row of block ids, how many of them are in each group,
    and what its next token is sampled from. `prompt_logprobs` is None or how many top tokens are
    scored at each token of the prompt. With `pooling` it samples nothing."""

    index: int
    num_blocks: list[int]
    sampling: SamplingState
    prompt_logprobs: int | None
    pooling: PromptPooling | None = None


@dataclass(slots=True)
class LaunchedStep:
    """A step that was launched.

    rows: the request of each chunk.
    spans: the first row and the end of each chunk's rows in the logits.
    logits: [rows, vocab_size], until they are sampled.
    pooled: which states are part of vectors; `states` are these, until they are pooled.
    vectors: those of the prompts that are complete, on their way.
    sampled_chunks: the indices of the chunks that sample a token.
    pending: the sampled tokens, one for each of these chunks.
    requested: the logits of tokens that requests name.
    scored: log probabilities of prompt tokens by request id.
    failed: the requests whose part of the step cannot be computed.
    failure: what kept the step from being computed at once, if anything did.
    launch: how the device was told to compute it, or the last part of it, if it computes anything.
    """

    step: Step
    rows: list[RequestRow] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    logits: Tensor | None = None
    pooled: PooledSpans = field(default_factory=PooledSpans)
    states: Tensor | None = None
    vectors: PendingVectors | None = None
    sampled_chunks: list[int] = field(default_factory=list)
    pending: PendingSample | None = None
    requested: PendingTokenLogits | None = None
    scored: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    failure: StepFailure | None = None
    launch: StepLaunch | None = None

    def append(self, token_ids: Iterable[int]) -> None:
        """Append the sampled tokens to their rows; a row that does not take its own fails."""
        for index, token_id in zip(self.sampled_chunks, token_ids, strict=True):
            try:
                self.rows[index].sampling.append(token_id)
            except Exception:
                logger.exception("a request's logits processors do not take its token")
                self.failure = StepFailure.ERROR
                self.fail([index])

    def fail(self, chunks: Iterable[int]) -> None:
        """Note that the parts of the requests of these chunks cannot be computed."""
        for index in chunks:
            request_id = self.step.chunks[index].request_id
            logger.error(
                "the request %s ends: its part of step %d fails", request_id, self.step.number
            )
            self.failed.add(request_id)
