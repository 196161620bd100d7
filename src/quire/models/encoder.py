"""An encoder of transformers behind the `Model` protocol: each token sees all of its own text, and
nothing is kept from step to step.

The texts of a step are packed into one row as chunks are, and attention runs text by text.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.batch import Batch, StepRows


@dataclass(slots=True)
class PackedTexts:
    """The boundaries of the texts in an encoder's current row: the beginning of each, and the end
    of the last."""

    starts: tuple[int, ...] = (0, 0)


@dataclass(frozen=True, slots=True)
class TextAttentionHook:
    """Attends within each text of a row. Where a module gives its attention function a
    `sliding_window`, a token sees those less than that away on both sides."""

    texts: PackedTexts

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        scaling, window = extras.get("scaling"), extras.get("sliding_window")
        parts = [
            scaled_dot_product_attention(
                query[:, :, first:end],
                key[:, :, first:end],
                value[:, :, first:end],
                attn_mask=_within(window, end - first, query.device),
                scale=scaling if isinstance(scaling, float) else None,
            )
            for first, end in pairwise(self.texts.starts)
        ]
        return torch.cat(parts, dim=2).transpose(1, 2)


def _within(window: object, num_tokens: int, device: torch.device) -> Tensor | None:
    """Return the mask [tokens, tokens] of a window, None where every token sees every other."""
    if not isinstance(window, int) or window >= num_tokens:
        return None
    places = torch.arange(num_tokens, device=device)
    return (places[:, None] - places).abs() < window


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """Implements `Model` over an encoder whose attention modules have a `TextAttentionHook`.

    texts: what the hooks read.
    first_position: the position of the first token of a text.
    has_types: the module tells second texts from first ones.
    head: makes what is returned of states, scores [rows, 1]; None for the states themselves.
    """

    module: nn.Module
    texts: PackedTexts
    vocab_size: int
    first_position: int = 0
    has_types: bool = False
    head: Callable[[Tensor], Tensor] | None = None

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        assert not copies, "an encoder has no blocks"

    def take_copy_time(self) -> CopyTime:
        return CopyTime()

    def forward(self, batch: Batch) -> Tensor:
        raise RuntimeError("an encoder has no head that continues a text")

    @torch.inference_mode()
    def forward_with_states(self, batch: Batch) -> StepRows:
        """Compute the texts of a step, each of them whole."""
        indices = batch.states_indices
        assert indices is not None
        states = self.states(batch)
        found = states.index_select(0, indices)
        rows = found if self.head is None else self.head(found)
        return StepRows(states.new_empty(0, self.vocab_size), rows)

    def states(self, batch: Batch) -> Tensor:
        """Return the states [T, hidden_size] of all tokens of a step."""
        self.texts.starts = batch.query_starts
        types = batch.token_types
        if not self.has_types:
            options = {}
        elif types is None:
            options = {"token_type_ids": torch.zeros_like(batch.input_ids)[None]}
        else:
            options = {"token_type_ids": types[None]}
        states: Tensor = self.module(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None] + self.first_position,
            **options,
        ).last_hidden_state
        return states[0]
