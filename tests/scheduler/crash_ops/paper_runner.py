"""A runner without tensors: what a token sees is one number, which depends on all tokens before it,
and every block remembers the numbers that were written to it.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_pool import NULL_BLOCK
from quire.cache.spec import AttentionPattern
from quire.scheduler.request import NewRequest, TokenLogprobs
from quire.scheduler.step import BlockIds, NewRequestData, SeqChunk, Step, StepResult

VOCAB_SIZE = 3
"""Few tokens, so that outputs go on like others' prompts."""
_MASK = (1 << 64) - 1

Slots: TypeAlias = dict[tuple[int, int], int]
"""The number that lies at each offset of each block, told apart by layer groups."""


def state_of(new: NewRequest) -> int:
    """The number before the first token: blocks of other salts never have the same."""
    return int.from_bytes(new.sharing.salt, "big")


def after(state: int, token_id: int) -> int:
    """The number after one more token."""
    return (state * 6364136223846793005 + token_id + 1442695040888963407) & _MASK


def next_token(state: int, seed: int) -> int:
    """The token that is sampled behind a text, whatever ran beside it."""
    return ((state ^ (seed * 0x9E3779B97F4A7C15)) >> 33) % VOCAB_SIZE


@dataclass(slots=True)
class PaperRow:
    """A running request. `states[i]` is the number after the token at position i."""

    new: NewRequest
    token_ids: list[int]
    states: list[int]
    block_ids: tuple[list[int], ...]

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.states.append(after(self.states[-1] if self.states else state_of(self.new), token_id))


@dataclass(slots=True)
class PaperRunner:
    """Does a step as a runner does, and checks that all a token sees is what it should be."""

    groups: tuple[AttentionPattern, ...]
    block_size: int
    rows: dict[str, PaperRow] = field(default_factory=dict)
    device: Slots = field(default_factory=dict)
    host: Slots = field(default_factory=dict)

    def run(self, step: Step) -> StepResult:
        for request_id in step.finished_requests:
            del self.rows[request_id]
        for copy in step.block_copies:
            self._copy(copy)
        for join in step.new_requests:
            self._join(join)
        token_ids, scores = [], {}
        for chunk in step.chunks:
            row = self.rows[chunk.request_id]
            self._extend(row, chunk.new_block_ids)
            self._compute(row, chunk)
            if row.new.prompt_logprobs is not None:
                scores[chunk.request_id] = self._scores(row, chunk)
        for chunk in step.chunks:
            if chunk.samples:
                row = self.rows[chunk.request_id]
                token_ids.append(next_token(row.states[-1], row.new.sampling.seed))
                row.append(token_ids[-1])
        return StepResult(step.number, tuple(token_ids), prompt_logprobs=scores)

    def _copy(self, copy: BlockCopy) -> None:
        source = self.host if copy.kind is CopyKind.IN else self.device
        target = self.host if copy.kind is CopyKind.OUT else self.device
        for offset in range(self.block_size):
            state = source.get((copy.source, offset))
            target.pop((copy.target, offset), None)
            if state is not None:
                target[copy.target, offset] = state

    def _join(self, join: NewRequestData) -> None:
        row = PaperRow(join.request, [], [], tuple([] for _ in self.groups))
        for token_id in join.token_ids:
            row.append(token_id)
        self._extend(row, join.block_ids)
        self.rows[join.request.id] = row

    def _extend(self, row: PaperRow, new_block_ids: BlockIds) -> None:
        for ids, more in zip(row.block_ids, new_block_ids, strict=False):
            ids.extend(more)

    def _compute(self, row: PaperRow, chunk: SeqChunk) -> None:
        end = chunk.start + chunk.num_tokens
        assert end <= len(row.states), "what is computed is known, or was sampled"
        pairs = enumerate(zip(self.groups, row.block_ids, strict=True))
        for group, (pattern, ids) in pairs:
            for position in range(pattern.first_needed(chunk.start), chunk.start):
                block, offset = divmod(position, self.block_size)
                assert self.device[ids[block], offset] == row.states[position] ^ group
            for position in range(chunk.start, end):
                block, offset = divmod(position, self.block_size)
                assert ids[block] != NULL_BLOCK
                self.device[ids[block], offset] = row.states[position] ^ group

    def _scores(self, row: PaperRow, chunk: SeqChunk) -> tuple[TokenLogprobs, ...]:
        """Of the prompt tokens that the chunk predicts."""
        prompt = row.new.prompt_token_ids
        end = min(chunk.start + chunk.num_tokens, len(prompt) - 1)
        return tuple(
            TokenLogprobs(prompt[at + 1], -float(at + 1), ()) for at in range(chunk.start, end)
        )
