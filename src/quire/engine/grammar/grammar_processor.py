"""Grammars: only tokens that go on in the grammar are sampled."""

from dataclasses import dataclass
from typing import Protocol

import torch

from quire.engine.sampling.logits_processor import RowEdits
from quire.models.native.sampling.sampling import num_mask_words


class TokenMatcher(Protocol):
    """The part of llguidance's LLMatcher that follows an output."""

    def consume_token(self, sampled_token: int) -> bool: ...

    def compute_bitmask(self) -> bytes: ...

    def is_error(self) -> bool: ...


@dataclass(slots=True)
class GrammarProcessor:
    """Allows the tokens that `matcher` allows after those it has taken, and end-of-sequence tokens
    where the grammar may end. The mask of a token is computed once."""

    matcher: TokenMatcher
    _mask: torch.Tensor | None = None

    @property
    def is_done(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        self.matcher.consume_token(token_id)
        self._mask = None

    def edit(self, edits: RowEdits) -> None:
        if self._mask is None:
            self._mask = self._compute_mask(edits.vocab_size)
        if self.matcher.is_error() or not self._mask.any():
            edits.fail()
        else:
            edits.allow(self._mask)

    def _compute_mask(self, vocab_size: int) -> torch.Tensor:
        """Return int32 [num_mask_words(vocab_size)]: bit i of word w is token 32 w + i."""
        words = torch.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=torch.int32)
        return words[: num_mask_words(vocab_size)]
