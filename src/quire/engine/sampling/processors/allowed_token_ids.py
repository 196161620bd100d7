"""`allowed_token_ids`: the only token ids that an output may hold."""

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits
from quire.models.native.sampling.sampling import num_mask_words


@dataclass(slots=True)
class AllowedTokenIds:
    """Allows `token_ids` for every token. Their mask is made once; an id beyond the vocabulary has
    no bit in it."""

    token_ids: tuple[int, ...]
    _mask: Tensor | None = None

    @property
    def is_done(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        """Change nothing: the allowed tokens do not depend on the output."""

    def edit(self, edits: RowEdits) -> None:
        if self._mask is None:
            self._mask = _mask_of(self.token_ids, edits.vocab_size)
        edits.allow(self._mask)


def _mask_of(token_ids: tuple[int, ...], vocab_size: int) -> Tensor:
    """Return int32 [num_mask_words(vocab_size)]: bit i of word w is token 32 w + i."""
    words = array("I", bytes(4 * num_mask_words(vocab_size)))
    for token_id in token_ids:
        if token_id < vocab_size:
            words[token_id // 32] |= 1 << token_id % 32
    return torch.frombuffer(words, dtype=torch.int32)


def build_allowed_token_ids(context: ProcessorContext) -> AllowedTokenIds | None:
    """Return a processor for a request with `allowed_token_ids`."""
    allowed = context.sampling.allowed_token_ids
    return AllowedTokenIds(allowed) if allowed else None
