"""The first laws on the toy model: the same text alone or in company, balanced accounts, an end.

The planted faults at the end show that the property would see them: a broken hash chain, a block
sealed before it is filled, a block given to two owners, grown blocks lost on the way, outputs lost
by a preemption, noise that depends on the batch, a prefix hit one block too long, blocks given back
that a window still sees, one group's block found for another, a hit that a window cannot honour.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.cache.block_hash import BlockHash
from quire.cache.block_pool import NULL_BLOCK, AccountsError, BlockPool
from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain, Content
from quire.cache.kv_cache import KVCache
from quire.cache.prefix import find_prefix
from quire.cache.reuse import Reuse
from quire.cache.spec import FULL, Kind, Retention
from quire.engine.runner import Runner
from quire.engine.sample_row import SampleRow
from quire.engine.sampler import Drawn, Sampler
from quire.models.toy import TWO_FULL
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request, Sampling, Stopping
from quire.scheduler.step import Step, StepResult
from tests.engine.toy_world import MAX_MODEL_LEN, VOCAB_SIZE, Arrival, Shape, World, alone, play

TOKENS = st.integers(0, VOCAB_SIZE - 1)
COMMON = tuple((7 * index + 3) % VOCAB_SIZE for index in range(MAX_MODEL_LEN))
"""Prompts start with a piece of it, so that prefixes are shared."""

SAMPLINGS = st.one_of(
    st.just(Sampling(temperature=0.0)),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.7, 1.5]),
        top_k=st.sampled_from([0, 3]),
        top_p=st.sampled_from([1.0, 0.8]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        seed=st.integers(0, 3),
    ),
)


layer_stacks = st.lists(
    st.one_of(
        st.just(FULL),
        st.builds(Retention, st.sampled_from([Kind.SLIDING, Kind.LOCAL]), st.integers(1, 12)),
    ),
    min_size=2,
    max_size=4,
).map(tuple)
"""Layers that see all, a window or a chunk, in any mixture; each kind is a layer group."""


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    max_num_seqs = draw(st.integers(1, 6))
    return Shape(
        block_size=draw(st.integers(1, 8)),
        num_blocks=draw(st.integers(4, 40)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 20)),
        reuse=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        late=draw(st.booleans()),
        layers=draw(st.just(TWO_FULL) | layer_stacks),
        hybrid=draw(st.booleans()),
    )


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    found = []
    for index in range(draw(st.integers(1, 8))):
        shared = COMMON[: draw(st.integers(0, 16))]
        own = tuple(draw(st.lists(TOKENS, max_size=6)))
        turn = draw(st.integers(0, 10))
        stopping = Stopping(
            max_tokens=draw(st.integers(1, 14)),
            min_tokens=draw(st.integers(0, 1)),
            eos_token_ids=draw(st.sampled_from([(), (5,)])),
            stop_token_ids=draw(st.sampled_from([(), (2, 9)])),
        )
        new = NewRequest(
            id=f"r{index}",
            prompt_token_ids=shared + own or (1,),
            sampling=draw(SAMPLINGS),
            stopping=stopping,
            reuse=Reuse(draw(st.sampled_from([b"", b"tenant"]))),
        )
        aborts = draw(st.none() | st.integers(0, 12))
        found.append(Arrival(new, turn, None if aborts is None else turn + aborts))
    return found


def check_laws(shape: Shape, script: list[Arrival]) -> None:
    num_tokens = sum(len(a.new.prompt_token_ids) + a.new.stopping.max_tokens for a in script)
    world = play(shape, script, max_turns=100 + 30 * num_tokens)
    for arrival in script:
        check_outcome(world, arrival, shape.layers)
    usage = world.cache.usage
    assert usage.active == 0, "all blocks are home when idle"
    assert usage.free + usage.cached == shape.num_blocks - 1


def check_outcome(world: World, arrival: Arrival, layers: tuple[Retention, ...] = TWO_FULL) -> None:
    """Refused with numbers, or ended with the text it would have alone, or aborted within that
    text.
    """
    new = arrival.new
    refusal = world.refusals.get(new.id)
    if refusal is not None:
        assert refusal.reason is Reason.NEVER_FITS
        assert any(char.isdigit() for char in refusal.message)
        return
    said, wanted = world.tokens_of(new.id), alone(new, layers)
    finish = world.deltas[new.id][-1].finish
    assert finish is not None
    if finish.reason is Reason.ABORTED:
        assert arrival.abort_turn is not None
        assert said == wanted[: len(said)]
    else:
        assert said == wanted
    assert finish.num_output_tokens == len(said)
    assert finish.queue_s >= 0 and finish.prefill_s >= 0 and finish.decode_s >= 0


@given(shapes(), arrivals())
def test_same_text_alone_or_in_company(shape: Shape, script: list[Arrival]) -> None:
    check_laws(shape, script)


def test_a_script_that_preempts_keeps_every_output() -> None:
    shape = Shape(2, 14, 6, 12, reuse=True, watermark=0.0, late=False)
    script = [
        Arrival(
            NewRequest(
                f"r{index}", COMMON[: 2 + index], Sampling(temperature=0.0), Stopping(max_tokens=12)
            ),
            turn=0,
        )
        for index in range(6)
    ]
    check_laws(shape, script)
    world = play(shape, script, max_turns=1000)
    assert world.scheduler.stats.num_preemptions > 0


def test_shared_prompts_hit_the_prefix_cache() -> None:
    shape = Shape(2, 40, 6, 26, reuse=True, watermark=0.0, late=False)
    script = [
        Arrival(
            NewRequest(f"r{turn}", COMMON[:12], Sampling(seed=turn), Stopping(max_tokens=4)), turn
        )
        for turn in range(4)
    ]
    check_laws(shape, script)
    world = play(shape, script, max_turns=1000)
    assert world.scheduler.stats.num_prefix_hits == 3 * 10


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("kind", [Kind.SLIDING, Kind.LOCAL])
def test_a_request_of_twenty_windows_lives_in_its_worst_case(kind: Kind, late: bool) -> None:
    """In a pool that has no block more, and without one preemption."""
    layer = Retention(kind, 2)
    worst = layer.max_blocks(44, block_size=2, max_chunk_tokens=5)
    assert worst < 44 // 2 // 3
    shape = Shape(2, worst + 1, 1, 5, True, 0.0, late, layers=(layer, layer))
    new = NewRequest("r", COMMON[:20], Sampling(temperature=0.0), Stopping(max_tokens=24))
    world = World(shape)
    world.add(new)
    while world.scheduler.has_work:
        world.turn()
        assert world.cache.usage.active <= worst
    assert world.tokens_of("r") == alone(new, shape.layers)
    assert world.scheduler.stats.num_preemptions == 0


def search(max_examples: int) -> None:
    """The law over a fixed set of cases, stopping at the first that breaks it."""

    @settings(max_examples=max_examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(shapes(), arrivals())
    def law(shape: Shape, script: list[Arrival]) -> None:
        check_laws(shape, script)

    law()


def forgets_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the digest and in the proof, which alone makes up for any digest."""

    def forgetful(block_hash: BlockHash, block_size: int, reuse: Reuse) -> Chain:
        return Chain(BlockHash(b"", lambda parent, tokens, extra: tokens), block_size, reuse)

    def matches(chain: Chain, content: Content, index: int) -> bool:
        return (content.tokens, content.extra) == (chain.tokens(index), chain.extra(index))

    def num_matching(chain: Chain, contents: list[Content]) -> int:
        pairs = enumerate(contents)
        return next((at for at, each in pairs if not matches(chain, each, at)), len(contents))

    monkeypatch.setattr("quire.cache.kv_cache.Chain", forgetful)
    monkeypatch.setattr(Chain, "matches", matches)
    monkeypatch.setattr(Chain, "num_matching", num_matching)


def seals_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = KVCache.advance

    def early(
        cache: KVCache, table: BlockTable, token_ids: Sequence[int], num_computed: int
    ) -> None:
        advance(cache, table, token_ids, min(len(token_ids), num_computed + 8))

    monkeypatch.setattr(KVCache, "advance", early)


def gives_a_block_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    take = BlockPool.take

    def twice(pool: BlockPool, num_blocks: int) -> list[int] | None:
        taken = take(pool, num_blocks)
        return [taken[0]] * num_blocks if taken and num_blocks > 1 else taken

    monkeypatch.setattr(BlockPool, "take", twice)


def loses_grown_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Runner.run

    def deaf(runner: Runner, step: Step) -> StepResult:
        chunks = tuple(chunk._replace(grown=()) for chunk in step.chunks)
        return run(runner, Step(step.number, step.drops, step.joins, chunks, step.num_tokens))

    monkeypatch.setattr(Runner, "run", deaf)


def loses_outputs_when_preempting(monkeypatch: pytest.MonkeyPatch) -> None:
    push = WaitingQueue.push_front

    def forgetful(line: WaitingQueue, request: Request) -> None:
        del request.token_ids[request.num_prompt_tokens :]
        push(line, request)

    monkeypatch.setattr(WaitingQueue, "push_front", forgetful)


def noise_by_place_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Sampler.draw

    def placed(sampler: Sampler, logits: Tensor, rows: Sequence[SampleRow]) -> Drawn:
        moved = [
            SampleRow(
                replace(row.sampling, seed=row.sampling.seed + place),
                row.stopping,
                row.token_ids,
                row.num_prompt_tokens,
            )
            for place, row in enumerate(rows)
        ]
        return draw(sampler, logits, moved)

    monkeypatch.setattr(Sampler, "draw", placed)


def hits_one_block_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_prefix

    def generous(
        pool: BlockPool, groups: Sequence[Retention], chain: Chain, most: int, *, block_size: int
    ) -> tuple[list[int], ...]:
        found = find(pool, groups, chain, most, block_size=block_size)
        return tuple(ids[:1] + ids[:-1] for ids in found)

    monkeypatch.setattr("quire.cache.kv_cache.find_prefix", generous)


def gives_back_what_a_window_still_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = KVCache.grow

    def hasty(
        cache: KVCache, table: BlockTable, start: int, end: int
    ) -> tuple[tuple[int, ...], ...] | None:
        return grow(cache, table, end, end)

    monkeypatch.setattr(KVCache, "grow", hasty)


def finds_another_groups_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("kv_cache", "prefix"):
        monkeypatch.setattr(f"quire.cache.{user}.group_key", lambda digest, _group: digest)


def asks_no_window_for_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_prefix

    def trusting(
        pool: BlockPool, groups: Sequence[Retention], chain: Chain, most: int, *, block_size: int
    ) -> tuple[list[int], ...]:
        length = len(find(pool, groups[:1], chain, most, block_size=block_size)[0])
        found = find(pool, groups, chain, most, block_size=block_size)
        return tuple(ids + [NULL_BLOCK] * (length - len(ids)) for ids in found)

    monkeypatch.setattr("quire.cache.kv_cache.find_prefix", trusting)


@pytest.mark.parametrize(
    "plant",
    [
        gives_back_what_a_window_still_sees,
        finds_another_groups_block,
        asks_no_window_for_its_blocks,
        forgets_parents,
        seals_too_early,
        gives_a_block_twice,
        loses_grown_blocks,
        loses_outputs_when_preempting,
        noise_by_place_in_the_batch,
        hits_one_block_too_many,
    ],
)
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, AccountsError, ValueError, IndexError, KeyError)):
        search(max_examples=400)
