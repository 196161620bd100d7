"""Step -> Batch -> model -> sampler -> StepResult. Keeps, for each running request, the tokens to
draw from and its block ids as a row of one array for each layer group, so that a batch is built by
a few vectorised look-ups.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.build_sampler import build_sampler
from quire.engine.sample_row import SampleRow
from quire.engine.sampler import Drawn
from quire.models.batch import Batch, Model
from quire.scheduler.request import TokenLogprobs
from quire.scheduler.step import BlockIds, Chunk, Join, Step, StepResult

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """`max_num_blocks` is the longest block table of one request, in each of `num_groups`."""

    max_num_seqs: int
    max_num_blocks: int
    block_size: int
    device: str
    num_groups: int = 1


@dataclass(slots=True)
class Row:
    """One running request: its place among the block ids, and what its next token is drawn from."""

    index: int
    num_blocks: list[int]
    draw: SampleRow
    prompt_logprobs: int | None


class Runner:
    """Applies a step's drops, moves and joins, then computes its chunks. `clock` gives seconds that
    only grow."""

    def __init__(
        self, config: RunnerConfig, model: Model, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._model = model
        self._clock = clock
        self._sampler = build_sampler(model.vocab_size, torch.device(config.device))
        self._rows: dict[str, Row] = {}
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        shape = (config.num_groups, config.max_num_seqs, config.max_num_blocks)
        self._block_ids = np.zeros(shape, dtype=np.int32)

    def run(self, step: Step) -> StepResult:
        for request_id in step.drops:
            self._free_rows.append(self._rows.pop(request_id).index)
        began = self._clock()
        if step.moves:
            self._model.move(step.moves)
        move_s = self._clock() - began
        for join in step.joins:
            self._join(join)
        if not step.chunks:
            return StepResult(step.number, (), move_s=move_s)
        for chunk in step.chunks:
            if chunk.grown:
                self._extend(self._rows[chunk.request_id], chunk.grown)
        batch, spans = self._batch(step)
        logits = self._model.forward(batch)
        return replace(self._result(step, logits, spans), move_s=move_s)

    def _join(self, join: Join) -> None:
        new = join.new
        draw = SampleRow(
            new.sampling, new.stopping, list(join.token_ids), len(new.prompt_token_ids)
        )
        num_blocks = [0] * self._config.num_groups
        row = Row(self._free_rows.pop(), num_blocks, draw, new.prompt_logprobs)
        self._rows[new.id] = row
        self._extend(row, join.block_ids)

    def _extend(self, row: Row, grown: BlockIds) -> None:
        for group, block_ids in enumerate(grown):
            first = row.num_blocks[group]
            end = first + len(block_ids)
            self._block_ids[group, row.index, first:end] = block_ids
            row.num_blocks[group] = end

    def _batch(self, step: Step) -> tuple[Batch, list[tuple[int, int]]]:
        """The step's tensors, and each chunk's span of rows among the logits."""
        rows = [self._rows[chunk.request_id] for chunk in step.chunks]
        counts = np.array([chunk.num_tokens for chunk in step.chunks], dtype=np.int64)
        firsts = np.array([chunk.start for chunk in step.chunks], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        owners = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(step.num_tokens) - np.repeat(starts[:-1] - firsts, counts)
        longest = int((firsts + counts).max() - 1) // self._config.block_size + 1
        tables = self._block_ids[:, [row.index for row in rows], :longest]
        query_starts = starts.tolist()
        logit_rows, spans = _logit_rows(step.chunks, rows, query_starts)
        batch = Batch(
            input_ids=self._tensor(_token_ids(step.chunks, rows)),
            positions=self._tensor(positions),
            slots=tuple(self._tensor(self._slots(table, owners, positions)) for table in tables),
            block_tables=tuple(self._tensor(table) for table in tables),
            query_starts=tuple(query_starts),
            context_lens=tuple((firsts + counts).tolist()),
            logit_rows=self._tensor(logit_rows),
        )
        return batch, spans

    def _slots(self, table: NDArray[np.int32], owners: Counts, positions: Counts) -> Counts:
        block_size = self._config.block_size
        slots: Counts = table[owners, positions // block_size].astype(np.int64) * block_size
        slots += positions % block_size
        return slots

    def _tensor(self, array: Counts | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array).to(self._config.device, non_blocking=True)

    def _result(self, step: Step, logits: Tensor, spans: list[tuple[int, int]]) -> StepResult:
        scored = self._score(step.chunks, logits, spans)
        sampling = [
            (chunk.request_id, span[1] - 1)
            for chunk, span in zip(step.chunks, spans, strict=True)
            if chunk.samples
        ]
        if not sampling:
            return StepResult(step.number, (), prompt_logprobs=scored)
        if len(sampling) < len(logits):
            logits = logits[[index for _, index in sampling]]
        rows = [self._rows[request_id].draw for request_id, _ in sampling]
        drawn = self._sampler.draw(logits, rows).result()
        for row, token_id in zip(rows, drawn.token_ids, strict=True):
            row.token_ids.append(token_id)
        return _step_result(step.number, [request_id for request_id, _ in sampling], drawn, scored)

    def _score(
        self, chunks: tuple[Chunk, ...], logits: Tensor, spans: list[tuple[int, int]]
    ) -> dict[str, tuple[TokenLogprobs, ...]]:
        """Log probabilities of the prompt tokens that these chunks predict."""
        scored = {}
        for chunk, (first, end) in zip(chunks, spans, strict=True):
            row = self._rows[chunk.request_id]
            if row.prompt_logprobs is None:
                continue
            targets = row.draw.token_ids[chunk.start + 1 : row.draw.num_prompt_tokens]
            num_scored = min(len(targets), end - first)
            if num_scored > 0:
                scored[chunk.request_id] = tuple(
                    self._sampler.score(
                        logits[first : first + num_scored],
                        targets[:num_scored],
                        row.prompt_logprobs,
                    )
                )
        return scored


def _token_ids(chunks: tuple[Chunk, ...], rows: list[Row]) -> Counts:
    token_ids: list[int] = []
    for chunk, row in zip(chunks, rows, strict=True):
        if chunk.num_tokens == 1:
            token_ids.append(row.draw.token_ids[chunk.start])
        else:
            token_ids += row.draw.token_ids[chunk.start : chunk.start + chunk.num_tokens]
    return np.array(token_ids, dtype=np.int64)


def _logit_rows(
    chunks: tuple[Chunk, ...], rows: list[Row], starts: list[int]
) -> tuple[Counts, list[tuple[int, int]]]:
    """Of each chunk its last token if it samples, all its tokens if its prompt is scored, else
    none.
    """
    wanted: list[int] = []
    spans: list[tuple[int, int]] = []
    for chunk, row, (first, end) in zip(chunks, rows, pairwise(starts), strict=True):
        before = len(wanted)
        if row.prompt_logprobs is not None and chunk.start < row.draw.num_prompt_tokens:
            wanted.extend(range(first, end))
        elif chunk.samples:
            wanted.append(end - 1)
        spans.append((before, len(wanted)))
    return np.array(wanted, dtype=np.int64), spans


def _step_result(
    number: int, request_ids: list[str], drawn: Drawn, scored: dict[str, tuple[TokenLogprobs, ...]]
) -> StepResult:
    pairs = zip(request_ids, drawn.logprobs, strict=True)
    flags = zip(request_ids, drawn.not_finite, strict=True)
    return StepResult(
        number,
        tuple(drawn.token_ids),
        {request_id: logprobs for request_id, logprobs in pairs if logprobs is not None},
        scored,
        frozenset(request_id for request_id, bad in flags if bad),
    )
