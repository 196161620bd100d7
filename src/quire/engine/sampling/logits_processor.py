"""The interface of logits processors, which change logits before temperature.

Each request has its own, of those in `processors/table.py` that it needs. A processor is built when
its request joins the runner, is told of each token that is sampled, and is dropped once it is done.
For each token it adds its changes to the `RowEdits` of its row; the edits of all rows go to the
device together (`batched_edits.py`). A row without processors costs nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.engine.sampling.seen_tokens import SeenTokens
from quire.models.native.sampling.sampling import num_mask_words
from quire.scheduler.request import Sampling, Stopping


class ProcessorContext(NamedTuple):
    """The facts that a processor is built from: the request's parameters, and its tokens when it
    joins the runner, which after a preemption are its prompt and the outputs so far. `token_bytes`
    are those of every token by its id, none where the model's tokenizer is not known."""

    sampling: Sampling
    stopping: Stopping
    token_ids: Sequence[int]
    num_prompt_tokens: int
    token_bytes: Sequence[bytes] = ()

    @property
    def output_ids(self) -> Sequence[int]:
        """The tokens that were sampled so far."""
        return self.token_ids[self.num_prompt_tokens :]


class Penalties(NamedTuple):
    """The penalties of a row, and the tokens that they concern: repetition those of prompt and
    output, by a factor; frequency and presence the output's, by differences."""

    seen: SeenTokens
    repetition: float
    frequency: float
    presence: float


@dataclass(slots=True)
class RowEdits:
    """The changes of one row's logits [vocab_size] for its next token, by all its processors.

    They are applied in this order, whichever processor makes them, as in vLLM's sampler: what is
    added, then penalties, then the mask. Log probabilities are those of the unchanged logits.
    """

    vocab_size: int
    addends: list[tuple[int, float]] = field(default_factory=list, init=False)
    penalties: Penalties | None = field(default=None, init=False)
    mask: Tensor | None = field(default=None, init=False)
    forced: int | None = field(default=None, init=False)
    decided: int | None = field(default=None, init=False)
    has_failed: bool = field(default=False, init=False)

    def add(self, addends: Iterable[tuple[int, float]]) -> None:
        """Add to the logits of token ids; an id beyond the vocabulary has none and is left out."""
        self.addends += [each for each in addends if 0 <= each[0] < self.vocab_size]

    def ban(self, token_ids: Iterable[int]) -> None:
        """Keep token ids from being sampled."""
        self.add((token_id, -torch.inf) for token_id in token_ids)

    def penalise(self, penalties: Penalties) -> None:
        """Penalise the tokens that were seen. Raises ValueError the second time."""
        if self.penalties is not None:
            raise ValueError("a row has penalties already")
        self.penalties = penalties

    def allow(self, mask: Tensor) -> None:
        """Ban every token but those whose bit is set, also in every other mask of the row.

        `mask` is int32 [num_mask_words(vocab_size)] on the CPU: bit i of word w is token 32 w + i,
        as in llguidance and xgrammar. It is read when the row is sampled. Raises ValueError for
        another shape, dtype or device.
        """
        shape = (num_mask_words(self.vocab_size),)
        if mask.shape != shape or mask.dtype != torch.int32 or mask.device.type != "cpu":
            raise ValueError(
                f"a mask is {mask.dtype} {tuple(mask.shape)} on {mask.device}: "
                f"must be int32 {shape} on the CPU"
            )
        self.mask = mask if self.mask is None else self.mask & mask

    def force(self, token_id: int) -> None:
        """Ban every token but this one, unless another processor bans it."""
        self.forced = token_id

    @property
    def final_mask(self) -> Tensor | None:
        """The mask of the tokens that all processors allow; None if they ban by no mask."""
        token_id = self.forced
        if token_id is None or (token_id, -torch.inf) in self.addends:
            return self.mask
        word, bit = divmod(token_id, 32)
        if self.mask is not None and not int(self.mask[word]) >> bit & 1:
            return self.mask
        alone = torch.zeros(num_mask_words(self.vocab_size), dtype=torch.int32)
        alone[word] = 1 << bit if bit < 31 else -(1 << 31)
        return alone

    def decide(self, token_id: int) -> None:
        """Allow one token alone, whatever else changes the row: no ban or penalty keeps it away."""
        self.decided = token_id

    def fail(self) -> None:
        """Say that no token may be sampled: the request ends with an error."""
        self.has_failed = True


class LogitsProcessor(Protocol):
    """Changes the logits of one request, from which its next token is sampled."""

    @property
    def is_done(self) -> bool:
        """Whether it will never change anything again."""

    def accept(self, token_id: int) -> None:
        """Take the token that was sampled and appended to the request."""

    def edit(self, edits: RowEdits) -> None:
        """Add the changes for the next token to `edits`. It may be called more than once."""


class TokenConstraint(LogitsProcessor, Protocol):
    """A logits processor that may know the next token before the model has computed its logits."""

    @property
    def decided(self) -> int | None:
        """The token that comes next whatever the logits are, or None."""

    @property
    def has_failed(self) -> bool:
        """Whether the output is invalid, so that the request ends with an error."""


ProcessorBuilder = Callable[[ProcessorContext], LogitsProcessor | None]
"""Builds the processor of a request, or returns None if the request does not need it."""
