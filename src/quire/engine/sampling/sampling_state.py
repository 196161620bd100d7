"""The sampling state of one running request: its parameters, its tokens, its logits processors."""

from collections.abc import Iterable
from dataclasses import dataclass

from quire.engine.sampling.logits_processor import (
    LogitsProcessor,
    ProcessorBuilder,
    ProcessorContext,
    RowEdits,
    TokenConstraint,
)
from quire.engine.sampling.processors.table import PROCESSORS, build_processors
from quire.scheduler.request import Sampling


@dataclass(slots=True, eq=False)
class SamplingState:
    """The state of a request from which its next token is sampled, beside its logits.

    `token_ids` are the prompt and the outputs so far. `processors` are those that are not done.
    `constraint`, one of them, may decide tokens before they are sampled.
    `has_failed` says that they left no token to sample, or that the constraint has failed.
    """

    sampling: Sampling
    token_ids: list[int]
    num_prompt_tokens: int
    processors: list[LogitsProcessor]
    constraint: TokenConstraint | None = None
    has_failed: bool = False

    @property
    def position(self) -> int:
        """The index in the sequence of the token to sample next."""
        return len(self.token_ids)

    def append(self, token_id: int) -> None:
        """Append the token that was sampled."""
        self.token_ids.append(token_id)
        if self.processors:
            for processor in self.processors:
                processor.accept(token_id)
            self.processors = [each for each in self.processors if not each.is_done]
        if self.constraint is not None and self.constraint.has_failed:
            self.has_failed = True

    def take_decided(self) -> tuple[int, ...]:
        """Append the tokens that are decided already, and return them."""
        first = len(self.token_ids)
        if self.constraint is not None:
            while (token_id := self.constraint.decided) is not None:
                self.append(token_id)
        return tuple(self.token_ids[first:])

    def edits(self, vocab_size: int) -> RowEdits:
        """Return the edits of the processors for the next token."""
        edits = RowEdits(vocab_size)
        for processor in self.processors:
            processor.edit(edits)
        self.has_failed = edits.has_failed
        if edits.decided is None:
            return edits
        alone = RowEdits(vocab_size)
        alone.force(edits.decided)
        return alone


def build_sampling_state(
    context: ProcessorContext,
    builders: Iterable[ProcessorBuilder] = PROCESSORS,
    constraint: TokenConstraint | None = None,
) -> SamplingState:
    """Return the state of a request that joins the runner, with processors of `builders` and the
    constraint, if it has one."""
    processors = build_processors(context, builders)
    return SamplingState(
        context.sampling,
        list(context.token_ids),
        context.num_prompt_tokens,
        processors if constraint is None else [*processors, constraint],
        constraint,
    )
