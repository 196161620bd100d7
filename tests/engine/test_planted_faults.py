"""Faults planted on purpose, each of which the invariants must see."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
from hypothesis import Phase, given, settings
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_hash import BlockHash
from quire.cache.block_pool import NULL_BLOCK, AccountsError, BlockPool
from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain, Content
from quire.cache.kv_cache import KVCache
from quire.cache.prefix import find_prefix
from quire.cache.sharing import SharingTerms
from quire.cache.spec import AttentionPattern
from quire.engine.grammar.grammars import Grammars
from quire.engine.launched_step import LaunchedStep
from quire.engine.runner import Runner, RunnerConfig
from quire.engine.sampling.native_sampler import NativeSampler
from quire.engine.sampling.sampler import PendingSample, SamplerOutput
from quire.engine.sampling.sampling_state import SamplingState
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.models.batch import Model
from quire.models.toy import ToyModel
from quire.scheduler.admission import Admission
from quire.scheduler.prefix_waits import PrefixWaits
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.request import Request
from quire.scheduler.step import Step
from tests.engine.invariants import arrivals, check_invariants, shapes
from tests.engine.toy_engine import Arrival, Shape
from tests.long import long_but_for


def search(max_examples: int) -> None:
    """The invariant over a fixed set of cases, stopping at the first that breaks it."""

    @settings(max_examples=max_examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(shapes(), arrivals())
    def invariant(shape: Shape, script: list[Arrival]) -> None:
        check_invariants(shape, script)

    invariant()


def forgets_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the digest and in the proof, which alone makes up for any digest."""

    def forgetful(block_hash: BlockHash, block_size: int, sharing: SharingTerms) -> Chain:
        return Chain(BlockHash(b"", lambda parent, tokens, extra: tokens), block_size, sharing)

    def matches(chain: Chain, content: Content, index: int) -> bool:
        return (content.tokens, content.extra) == (chain.tokens(index), chain.extra(index))

    def num_matching(chain: Chain, contents: list[Content]) -> int:
        pairs = enumerate(contents)
        return next((at for at, each in pairs if not matches(chain, each, at)), len(contents))

    monkeypatch.setattr("quire.cache.kv_cache.Chain", forgetful)
    monkeypatch.setattr(Chain, "matches", matches)
    monkeypatch.setattr(Chain, "num_matching", num_matching)


def caches_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = KVCache.advance

    def early(
        cache: KVCache, table: BlockTable, token_ids: Sequence[int], num_computed: int
    ) -> None:
        advance(cache, table, token_ids, min(len(token_ids), num_computed + 8))

    monkeypatch.setattr(KVCache, "advance", early)


def gives_a_block_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    take = BlockPool.take

    def twice(pool: BlockPool, num_blocks: int, payer: str) -> list[int] | None:
        taken = take(pool, num_blocks, payer)
        return [taken[0]] * num_blocks if taken and num_blocks > 1 else taken

    monkeypatch.setattr(BlockPool, "take", twice)


def loses_grown_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Runner.launch

    def deaf(runner: Runner, step: Step) -> LaunchedStep:
        chunks = tuple(chunk._replace(new_block_ids=()) for chunk in step.chunks)
        return launch(runner, replace(step, chunks=chunks))

    monkeypatch.setattr(Runner, "launch", deaf)


@dataclass(frozen=True)
class Rolled:
    """On the device, each row has what the one before it sampled."""

    pending: PendingSample

    @property
    def token_ids(self) -> Tensor:
        return self.pending.token_ids.roll(1)

    def result(self) -> SamplerOutput:
        return self.pending.result()


def feeds_forward_what_another_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Runner.sample

    def confused(runner: Runner, launched: LaunchedStep) -> None:
        sample(runner, launched)
        launched.pending = launched.pending and Rolled(launched.pending)

    monkeypatch.setattr(Runner, "sample", confused)


def loses_outputs_when_preempting(monkeypatch: pytest.MonkeyPatch) -> None:
    add = WaitingQueue.add

    def forgetful(line: WaitingQueue, request: Request) -> None:
        del request.token_ids[request.num_prompt_tokens :]
        add(line, request)

    monkeypatch.setattr(WaitingQueue, "add", forgetful)


AnySampler = TypeVar("AnySampler")
AnyPending = TypeVar("AnyPending", bound=PendingSample)
SampleFn = Callable[[AnySampler, Tensor, Sequence[SamplingState]], AnyPending]


def by_row_index(sample: SampleFn[AnySampler, AnyPending]) -> SampleFn[AnySampler, AnyPending]:
    def sample_by_row_index(
        sampler: AnySampler, logits: Tensor, rows: Sequence[SamplingState]
    ) -> AnyPending:
        moved = [
            replace(row, sampling=replace(row.sampling, seed=row.sampling.seed + index))
            for index, row in enumerate(rows)
        ]
        return sample(sampler, logits, moved)

    return sample_by_row_index


def noise_by_index_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeSampler, "sample", by_row_index(NativeSampler.sample))
    monkeypatch.setattr(TorchSampler, "sample", by_row_index(TorchSampler.sample))


def hits_one_block_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_prefix

    def generous(
        pool: BlockPool,
        groups: Sequence[AttentionPattern],
        chain: Chain,
        max_blocks: int,
        *,
        block_size: int,
    ) -> tuple[list[int], ...]:
        found = find(pool, groups, chain, max_blocks, block_size=block_size)
        return tuple(ids[:1] + ids[:-1] for ids in found)

    monkeypatch.setattr("quire.cache.admission.find_prefix", generous)


def gives_back_what_a_window_still_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = KVCache.grow

    def hasty(
        cache: KVCache, table: BlockTable, start: int, end: int
    ) -> tuple[tuple[int, ...], ...] | None:
        return grow(cache, table, end, end)

    monkeypatch.setattr(KVCache, "grow", hasty)


def finds_another_groups_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("full_blocks", "prefix"):
        monkeypatch.setattr(f"quire.cache.{user}.group_key", lambda digest, _group: digest)


def asks_no_window_for_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_prefix

    def trusting(
        pool: BlockPool,
        groups: Sequence[AttentionPattern],
        chain: Chain,
        max_blocks: int,
        *,
        block_size: int,
    ) -> tuple[list[int], ...]:
        length = len(find(pool, groups[:1], chain, max_blocks, block_size=block_size)[0])
        found = find(pool, groups, chain, max_blocks, block_size=block_size)
        return tuple(ids + [NULL_BLOCK] * (length - len(ids)) for ids in found)

    monkeypatch.setattr("quire.cache.admission.find_prefix", trusting)


def forgets_to_copy(monkeypatch: pytest.MonkeyPatch, kind: CopyKind) -> None:
    copy_blocks = ToyModel.copy_blocks

    def lazy(model: ToyModel, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        copy_blocks(model, [each for each in copies if each.kind is not kind], new_blocks)

    monkeypatch.setattr(ToyModel, "copy_blocks", lazy)


def swaps_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets_to_copy(monkeypatch, CopyKind.OUT)


def swaps_nothing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets_to_copy(monkeypatch, CopyKind.IN)


def forks_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets_to_copy(monkeypatch, CopyKind.FORK)


def never_stops_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a result nor for one who is gone, and without a bound."""
    monkeypatch.setattr(PrefixWaits, "_remove", lambda _waits, _request, _keys: None)
    monkeypatch.setattr("quire.scheduler.prefix_waits.MAX_STEPS", 1 << 30)


def forks_before_the_prompt_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(admission: Admission, request: Request) -> Request | None:
        source = source_of(admission, request)
        if source is not None and source.table.block_ids:
            source.prompt_step = 0
        return source

    source_of = Admission._source_of
    monkeypatch.setattr(Admission, "_source_of", hasty)


def writes_all_parts_of_a_tensor_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(config: RunnerConfig, model: Model, grammars: Grammars) -> Runner:
        tables = tuple(table._replace(part=0) for table in config.tables)
        return Runner(replace(config, tables=tables), model, grammars)

    monkeypatch.setattr("tests.engine.toy_engine.Runner", careless)


def takes_parts_of_blocks_for_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(config: RunnerConfig, model: Model, grammars: Grammars) -> Runner:
        tables = tuple(table._replace(num_parts=1, part=0) for table in config.tables)
        return Runner(replace(config, tables=tables), model, grammars)

    monkeypatch.setattr("tests.engine.toy_engine.Runner", careless)


IN_EVERY_RUN = (
    gives_back_what_a_window_still_sees,
    caches_too_early,
    gives_a_block_twice,
    loses_grown_blocks,
    feeds_forward_what_another_sampled,
    noise_by_index_in_the_batch,
    hits_one_block_too_many,
)
SHOWN_BY_FEW_CASES = (
    writes_all_parts_of_a_tensor_to_the_first,
    takes_parts_of_blocks_for_whole_ones,
    finds_another_groups_block,
    asks_no_window_for_its_blocks,
    forgets_parents,
    loses_outputs_when_preempting,
    swaps_nothing_in,
    swaps_nothing_out,
    forks_without_a_copy,
    forks_before_the_prompt_is_computed,
    never_stops_waiting,
)
"""It takes seconds to find one. In every run the faults that are found sooner stand for them: the
search is the same. Preemptions, swaps, forks and the bound of a wait have tests of their own."""


@long_but_for(IN_EVERY_RUN, "plant", (*IN_EVERY_RUN, *SHOWN_BY_FEW_CASES))
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, AccountsError, ValueError, IndexError, KeyError)):
        search(max_examples=4000)
