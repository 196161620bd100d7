"""Grammars: only tokens that the grammar allows are sampled, and if it allows a single
continuation, its tokens are forced without sampling."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from quire.engine.grammar.reasoning_masks import ReasoningMasks
from quire.engine.sampling.logits_processor import RowEdits
from quire.models.native.sampling.sampling import num_mask_words


class TokenMatcher(Protocol):
    """The part of llguidance's LLMatcher that follows an output."""

    def consume_token(self, sampled_token: int) -> bool: ...

    def compute_bitmask(self) -> bytes: ...

    def compute_ff_tokens(self) -> list[int]: ...

    def validate_tokens(self, tokens: list[int]) -> int: ...

    def is_stopped(self) -> bool: ...

    def is_error(self) -> bool: ...

    def get_error(self) -> str: ...

    def deep_copy(self) -> "TokenMatcher": ...


def forced_tokens(matcher: TokenMatcher) -> Sequence[int]:
    """Return the tokens that alone are of the grammar here; none unless it takes them all."""
    found = matcher.compute_ff_tokens()
    return found if matcher.validate_tokens(found) == len(found) else ()


@dataclass(slots=True)
class GrammarProcessor:
    """Allows the tokens that `matcher` allows after those it has taken, and end-of-sequence tokens
    where the grammar may end. The mask of a token is computed once; within `reasoning`, where there
    is one, only if no request of the grammar has met it.

    Forced tokens are looked for at the start and after each token that was not forced itself. They
    wait in a queue, so that an output is the same whether they are sampled one by one or taken at
    once, and whether it was interrupted among them or not. A grammar that has ended decides
    `end_id`, once; None where the request does not heed the end of sequence.

    A grammar that does not take a token, or goes beyond its limits, has failed for good: it then
    decides nothing, not even an end.
    """

    matcher: TokenMatcher
    max_tokens: int
    end_id: int | None = None
    reasoning: ReasoningMasks | None = None
    has_failed: bool = False
    _forced: deque[int] = field(default_factory=deque)
    _mask: torch.Tensor | None = None

    @property
    def is_done(self) -> bool:
        return False

    @property
    def decided(self) -> int | None:
        return self._forced[0] if self._forced else None

    def force(self, token_ids: Sequence[int]) -> None:
        """Decide the next tokens, of which an output has room for `max_tokens` at most."""
        self._forced = deque(token_ids[: self.max_tokens])

    def accept(self, token_id: int) -> None:
        self._mask = None
        if self.reasoning is not None:
            self.reasoning.accept(token_id)
        self.has_failed = self.has_failed or not self.matcher.consume_token(token_id)
        if not self.has_failed:
            self._go_on(token_id)
            self.has_failed = self.matcher.is_error()
        if self.has_failed:
            self._forced.clear()

    def _go_on(self, token_id: int) -> None:
        """Find the forced tokens after an accepted token."""
        if self._forced and self._forced[0] == token_id:
            self._forced.popleft()
        else:
            self.force(forced_tokens(self.matcher))
        has_ended = not self._forced and self.matcher.is_stopped()
        if has_ended and self.end_id is not None and token_id != self.end_id:
            self._forced.append(self.end_id)

    def edit(self, edits: RowEdits) -> None:
        if self._forced:
            edits.decide(self._forced[0])
            return
        if self._mask is None:
            self._mask = self._find_mask(edits.vocab_size)
        if self.has_failed or self.matcher.is_error() or not self._mask.any():
            edits.fail()
        else:
            edits.allow(self._mask)

    def _find_mask(self, vocab_size: int) -> torch.Tensor:
        known = None if self.reasoning is None else self.reasoning.mask
        if known is not None:
            return known
        mask = self._compute_mask(vocab_size)
        if self.reasoning is not None and not self.matcher.is_error():
            self.reasoning.keep(mask)
        return mask

    def _compute_mask(self, vocab_size: int) -> torch.Tensor:
        """Return int32 [num_mask_words(vocab_size)]: bit i of word w is token 32 w + i."""
        words = torch.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=torch.int32)
        return words[: num_mask_words(vocab_size)]
