"""The model runner: Step -> Batch -> model -> sampler -> StepResult.

For each running request it keeps the tokens, and the block ids as a row of one array for each layer
group, so that a batch is built by a few vectorised look-ups.

A step has three parts: `launch` computes its logits, `sample` its next tokens, `collect` waits for
both. A step may be launched when the one before is sampled and not yet collected: input tokens that
the host does not know yet are copied on the device.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.cache.layout import BlockTableForm
from quire.engine.forward_pass import ForwardPass
from quire.engine.grammar.grammars import Grammars
from quire.engine.host_to_device import to_device
from quire.engine.launched_step import LaunchedStep, RequestRow
from quire.engine.pooling import (
    Numbers,
    PromptPooling,
    pool,
    pooled_spans,
    token_types,
)
from quire.engine.ranks.leading_model import LeadingModel
from quire.engine.sampling.build_sampler import build_sampler
from quire.engine.sampling.device_to_host import build_device_to_host
from quire.engine.sampling.logits_processor import ProcessorContext
from quire.engine.sampling.requested_tokens import fetch_requested
from quire.engine.sampling.row_samples import sample_rows
from quire.engine.sampling.sampler import SamplerOutput
from quire.engine.sampling.sampling_state import SamplingState, build_sampling_state
from quire.engine.state_pieces import state_pieces
from quire.models.batch import Batch, MapsPages, Model
from quire.models.graphs.graphed_model import GraphedModel
from quire.models.optimizations import Disabled, Optimization
from quire.scheduler.request import TokenLogprobs
from quire.scheduler.step import (
    BlockIds,
    NewRequestData,
    SeqChunk,
    Step,
    StepFailure,
    StepLaunch,
    StepResult,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """The sizes of a runner. `max_num_blocks` is the longest block table of one request, in each
    layer group; `tables` are the block tables by which layers attend (`Layout.tables`); `disabled`
    are the optimisations that are switched off. Unless it `cuts_prompts`, a chunk is a whole
    prompt."""

    max_num_seqs: int
    max_num_blocks: int
    block_size: int
    device: str
    tables: tuple[BlockTableForm, ...] = (BlockTableForm(0),)
    disabled: Disabled = ()
    cuts_prompts: bool = True

    @property
    def num_groups(self) -> int:
        """The number of layer groups."""
        return len({table.group for table in self.tables})


class Runner:
    """Applies the block copies and the changes of requests of a step, then computes its chunks.
    `grammars` are those that its requests have; None where they have none."""

    def __init__(
        self,
        config: RunnerConfig,
        model: Model,
        grammars: Grammars | None = None,
    ) -> None:
        self._config = config
        self._device = torch.device(config.device)
        self.model = model
        self._forward_pass = ForwardPass(model, self._device, cuts_prompts=config.cuts_prompts)
        self.grammars = grammars
        self._takes_forced = Optimization.FORCED_TOKENS not in config.disabled
        self._sampler = build_sampler(model.vocab_size, self._device, config.disabled)
        self._to_host = build_device_to_host(self._device)
        self._rows: dict[str, RequestRow] = {}
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        shape = (config.num_groups, config.max_num_seqs, config.max_num_blocks)
        self._block_ids = np.zeros(shape, dtype=np.int32)
        self._last: LaunchedStep | None = None
        self._pages = model.pages_ahead() if isinstance(model, MapsPages) else None
        self._num_blocks_used = 0

    def run(self, step: Step) -> StepResult:
        """Compute the whole step and wait for its result."""
        launched = self.launch(step)
        self.sample(launched)
        return self.collect(launched)

    def map_pages(self, *, is_idle: bool) -> bool:
        """Map a page of memory for blocks that come next; return whether more may be mapped."""
        pages = self._pages
        return pages is not None and pages.map_next(self._num_blocks_used, is_idle=is_idle)

    def launch(self, step: Step) -> LaunchedStep:
        """Compute a step up to its logits. The step launched before must have been sampled."""
        for request_id in step.finished_requests:
            self._free_rows.append(self._rows.pop(request_id).index)
        launched = LaunchedStep(step)
        claimed = _claimed(step)
        if step.block_copies or claimed:
            self.model.copy_blocks(step.block_copies, claimed)
        for join in step.new_requests:
            self._join(join, launched)
        if step.chunks:
            for chunk in step.chunks:
                if chunk.new_block_ids:
                    self._extend(self._rows[chunk.request_id], chunk.new_block_ids)
            launched.rows = [self._rows[chunk.request_id] for chunk in step.chunks]
            output = self._forward_pass.run(self._batch(launched))
            launched.logits, launched.states = output.rows
            launched.launch = _launch_of(self.model)
            if output.failure is not None:
                launched.failure = output.failure
                launched.fail(output.failed_chunks)
                launched.pooled.drop(launched.failed)
        self._last = launched
        return launched

    def sample(self, launched: LaunchedStep) -> None:
        """Sample the next tokens. The step launched before must have been collected, since
        penalties depend on its tokens."""
        logits, states = launched.logits, launched.states
        if logits is None:
            return
        if states is not None:
            launched.vectors = pool(launched.pooled, states, self._to_host)
        launched.scored = self._score(launched, logits)
        if launched.sampled_chunks:
            ends = [launched.spans[index][1] - 1 for index in launched.sampled_chunks]
            if len(ends) < len(logits):
                (indices,) = to_device([torch.tensor(ends)], self._device)
                logits = logits.index_select(0, indices)
            rows = [launched.rows[index].sampling for index in launched.sampled_chunks]
            samples = sample_rows(self._sampler, logits, rows)
            launched.pending = samples.pending
            if samples.failure is not None:
                launched.failure = samples.failure
                launched.fail(launched.sampled_chunks[row] for row in samples.failed_rows)
            launched.requested = fetch_requested(
                logits, rows, launched.pending.token_ids, self._to_host
            )
        launched.logits = launched.states = None

    def collect(self, launched: LaunchedStep) -> StepResult:
        """Wait for a step's tokens, append them to their requests, and return the result.

        Where no step was launched since, tokens that a grammar forces after the sampled one are
        appended too, unless their log probabilities are requested. Block copies are not waited for:
        their time comes with the first result after they are done.
        """
        sampled = None if launched.pending is None else launched.pending.result()
        rows = [launched.rows[index].sampling for index in launched.sampled_chunks]
        if sampled is not None:
            if launched.requested is not None:
                launched.requested.add_to(sampled.logprobs)
            launched.append(sampled.token_ids)
        result = StepResult(
            launched.step.number,
            (),
            prompt_logprobs=launched.scored,
            step_failed=frozenset(launched.failed),
            step_failure=launched.failure,
            copy_time=self.model.take_copy_time(),
            launch=launched.launch,
        )
        if launched.vectors is not None:
            vectors, not_finite = launched.vectors.result()
            result = replace(result, vectors=vectors, not_finite=not_finite)
        if sampled is None:
            return result
        chunks = launched.step.chunks
        request_ids = [chunks[index].request_id for index in launched.sampled_chunks]
        if self._takes_forced and launched is self._last:
            forced = _forced(request_ids, rows)
            result = replace(result, forced=forced) if forced else result
        failed = [each for each, row in zip(request_ids, rows, strict=True) if row.has_failed]
        if failed:
            result = replace(result, grammar_failed=frozenset(failed))
        return _with_sampled(result, request_ids, sampled)

    def _join(self, join: NewRequestData, launched: LaunchedStep) -> None:
        new = join.request
        sampling = self._sampling_state(join, launched)
        num_blocks = [0] * self._config.num_groups
        row = RequestRow(self._free_rows.pop(), num_blocks, sampling, new.prompt_logprobs)
        if new.pooling is not None:
            row.pooling = PromptPooling(new.pooling, len(new.prompt_token_ids))
        self._rows[new.id] = row
        self._extend(row, join.block_ids)

    def _sampling_state(self, join: NewRequestData, launched: LaunchedStep) -> SamplingState:
        """Return the sampling state of the request, which fails if the state cannot be built."""
        new, num_prompt_tokens = join.request, len(join.request.prompt_token_ids)
        context = ProcessorContext(
            new.sampling,
            new.stopping,
            join.token_ids,
            num_prompt_tokens,
            () if self.grammars is None else self.grammars.token_bytes,
        )
        try:
            grammar = None if self.grammars is None else self.grammars.build_processor(context)
            return build_sampling_state(context, constraint=grammar)
        except Exception:
            logger.exception("the logits processors of %s cannot be built", new.id)
            launched.failed.add(new.id)
            launched.failure = StepFailure.ERROR
            return SamplingState(new.sampling, list(join.token_ids), num_prompt_tokens, [])

    def _extend(self, row: RequestRow, new_block_ids: BlockIds) -> None:
        """Append new block ids, one tuple for each group, to a request's row."""
        for group, block_ids in enumerate(new_block_ids):
            first = row.num_blocks[group]
            end = first + len(block_ids)
            self._block_ids[group, row.index, first:end] = block_ids
            row.num_blocks[group] = end
            self._num_blocks_used = max(self._num_blocks_used, *block_ids, 0)

    def _batch(self, launched: LaunchedStep) -> Batch:
        """Return the step's tensors; set `spans` and `sampled_chunks` of `launched`."""
        step, rows = launched.step, launched.rows
        counts = _numbers([chunk.num_tokens for chunk in step.chunks])
        firsts = _numbers([chunk.start for chunk in step.chunks])
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        owners = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(step.num_tokens) - np.repeat(starts[:-1] - firsts, counts)
        longest = int((firsts + counts).max() - 1) // self._config.block_size + 1
        tables = self._tables(self._block_ids[:, [row.index for row in rows], :longest])
        query_starts = starts.tolist()
        logits_indices, launched.spans = _logits_indices(step.chunks, rows, query_starts)
        poolings = [row.pooling for row in rows]
        launched.pooled = pooled_spans(step.chunks, poolings, query_starts)
        states_indices = _numbers(launched.pooled.indices)
        launched.sampled_chunks = [
            index for index, chunk in enumerate(step.chunks) if chunk.samples
        ]
        token_ids, awaited = _token_ids(step.chunks, rows, self._last)
        slots = [self._slots(table, owners, positions) for table in tables]
        types = token_types(poolings, owners, positions)
        given = (token_ids, positions, logits_indices, *awaited, states_indices, *slots, *tables)
        sent = to_device([torch.from_numpy(array) for array in (*given, *types)], self._device)
        if len(awaited[0]):
            assert self._last is not None and self._last.pending is not None
            sampled = self._last.pending.token_ids.index_select(0, sent[4])
            sent[0].index_copy_(0, sent[3], sampled)
        return Batch(
            input_ids=sent[0],
            positions=sent[1],
            slots=tuple(sent[6 : 6 + len(tables)]),
            block_tables=tuple(sent[6 + len(tables) : 6 + 2 * len(tables)]),
            query_starts=tuple(query_starts),
            context_lens=tuple((firsts + counts).tolist()),
            logits_indices=sent[2],
            states_indices=sent[5] if launched.pooled.spans else None,
            token_types=sent[-1] if types else None,
            pieces=state_pieces(step.chunks, query_starts, self._device),
        )

    def _tables(self, groups: NDArray[np.int32]) -> Sequence[NDArray[np.int32]]:
        """Return the block tables by which layers attend, from those of the groups."""
        return [
            groups[each.group]
            if each.num_parts == 1
            else groups[each.group] * np.int32(each.num_parts) + np.int32(each.part)
            for each in self._config.tables
        ]

    def _slots(self, table: NDArray[np.int32], owners: Numbers, positions: Numbers) -> Numbers:
        """Return the slot of each token by one block table; `owners` are the tokens' rows of it."""
        block_size = self._config.block_size
        slots: Numbers = table[owners, positions // block_size].astype(np.int64) * block_size
        slots += positions % block_size
        return slots

    def _score(
        self, launched: LaunchedStep, logits: Tensor
    ) -> dict[str, tuple[TokenLogprobs, ...]]:
        """Return the log probabilities of the prompt tokens that these chunks predict."""
        scored = {}
        chunks = zip(launched.step.chunks, launched.rows, launched.spans, strict=True)
        for chunk, row, (first, end) in chunks:
            if row.prompt_logprobs is None or chunk.request_id in launched.failed:
                continue
            targets = row.sampling.token_ids[chunk.start + 1 : row.sampling.num_prompt_tokens]
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


def _launch_of(model: Model) -> StepLaunch:
    """Return how the model's last step was launched."""
    own = model.model if isinstance(model, LeadingModel) else model
    return StepLaunch(own.launch) if isinstance(own, GraphedModel) else StepLaunch.NONE


def _claimed(step: Step) -> set[int]:
    """Return the blocks of all groups that requests get in this step."""
    new_block_ids = [chunk.new_block_ids for chunk in step.chunks if chunk.new_block_ids]
    joined = [join.block_ids for join in step.new_requests]
    return {block for block_ids in new_block_ids + joined for ids in block_ids for block in ids}


def _token_ids(
    chunks: tuple[SeqChunk, ...], rows: list[RequestRow], before: LaunchedStep | None
) -> tuple[Numbers, tuple[Numbers, Numbers]]:
    """Return the step's token ids, with 0 where the host does not know them yet, and for these
    their indices in the step, and their indices in what the step `before` has sampled."""
    token_ids: list[int] = []
    awaited: dict[int, int] = {}
    for chunk, row in zip(chunks, rows, strict=True):
        known = row.sampling.token_ids
        end = chunk.start + chunk.num_tokens
        token_ids += known[chunk.start : end]
        if end > len(known):
            awaited[len(token_ids)] = row.index
            token_ids.append(0)
    if not awaited:
        return _numbers(token_ids), (_numbers([]), _numbers([]))
    assert before is not None
    sampled = {
        before.rows[index].index: position for position, index in enumerate(before.sampled_chunks)
    }
    positions = [sampled[index] for index in awaited.values()]
    return _numbers(token_ids), (_numbers(list(awaited)), _numbers(positions))


def _numbers(values: Sequence[int]) -> Numbers:
    return np.array(values, dtype=np.int64)


def _logits_indices(
    chunks: tuple[SeqChunk, ...], rows: list[RequestRow], starts: list[int]
) -> tuple[Numbers, list[tuple[int, int]]]:
    """Return the indices of the step's tokens whose logits are needed, and the span of each chunk
    in them: its last token if it samples, all its tokens if its prompt is scored, else none.
    """
    indices: list[int] = []
    spans: list[tuple[int, int]] = []
    for chunk, row, (first, end) in zip(chunks, rows, pairwise(starts), strict=True):
        before = len(indices)
        if row.prompt_logprobs is not None and chunk.start < row.sampling.num_prompt_tokens:
            indices.extend(range(first, end))
        elif chunk.samples:
            indices.append(end - 1)
        spans.append((before, len(indices)))
    return _numbers(indices), spans


def _forced(request_ids: list[str], rows: list[SamplingState]) -> dict[str, tuple[int, ...]]:
    """Append to rows without log probabilities the tokens that are decided, and return them."""
    pairs = zip(request_ids, rows, strict=True)
    return {
        request_id: token_ids
        for request_id, row in pairs
        if row.constraint is not None
        and row.sampling.num_logprobs is None
        and (token_ids := row.take_decided())
    }


def _with_sampled(result: StepResult, request_ids: list[str], sampled: SamplerOutput) -> StepResult:
    pairs = zip(request_ids, sampled.logprobs, strict=True)
    flags = zip(request_ids, sampled.not_finite, strict=True)
    return replace(
        result,
        token_ids=tuple(sampled.token_ids),
        logprobs={request_id: logprobs for request_id, logprobs in pairs if logprobs is not None},
        not_finite=result.not_finite | {request_id for request_id, bad in flags if bad},
    )
