"""The speed checks of a GPU state floors and shares beside their figures, and time enough calls.
The checks themselves are rehearsed by the test of `bench.gpu_acceptance`."""

from functools import cache
from pathlib import Path

import pytest
import torch
from bench.cpu_attention import Shape
from bench.gpu.check import Place
from bench.gpu.speed.attention_case import BLOCK_SIZE, AttentionCase, build_batch
from bench.gpu.speed.ceilings import DeviceCeilings, ceilings, save
from bench.gpu.speed.decoding import REHEARSED_LOAD
from bench.gpu.speed.device_time import DeviceTime, union
from bench.gpu.speed.floor import Rates, Work, judge
from bench.gpu.speed.llama import SIZES, Llama, count_weights, decode_work, prefill_work
from bench.gpu.speed.peer import Prompts
from bench.gpu.speed.peers import Contest
from bench.gpu.speed.swap import REHEARSED, build_store, scattered
from bench.gpu.speed.timing import CACHE_TIMES, MAX_CALLS, REPLAY_S, Timing, num_buffers, rounds
from hypothesis import given
from hypothesis import strategies as st

from quire.models.attention.triton.tiles import TileShape
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")
from bench.gpu.speed.tiles import summarise  # noqa: E402

CPU = torch.device("cpu")
TINY = Shape(4, 2, 8)
count_tiny = cache(lambda: count_weights(SIZES["tiny"]))
CHUNKS = st.lists(
    st.integers(1, 70).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    min_size=1,
    max_size=5,
)


@given(st.integers(1, 1 << 34), st.integers(0, 1 << 28))
def test_a_buffer_is_out_of_the_cache_when_its_turn_comes(num_bytes: int, cache_bytes: int) -> None:
    count = num_buffers(num_bytes, cache_bytes)
    assert count >= 2
    assert (count - 1) * num_bytes >= CACHE_TIMES * cache_bytes
    assert count == 2 or (count - 2) * num_bytes < CACHE_TIMES * cache_bytes


@given(st.floats(1e-9, 10), st.integers(1, 100))
def test_a_replay_is_neither_long_nor_of_too_many_calls(call_s: float, num_calls: int) -> None:
    times = rounds(call_s, num_calls)
    one_round = max(num_calls, 1)
    assert times >= 1
    assert times == 1 or times * one_round <= MAX_CALLS + one_round
    assert times == 1 or (times - 1) * num_calls * call_s <= REPLAY_S


@cases(60)
@given(
    st.floats(1, 1e4),
    st.floats(1, 1e3),
    st.floats(0, 1e12),
    st.floats(0, 1e15),
    st.floats(1e-6, 10),
)
def test_a_share_is_the_larger_of_both_rates_shares(
    gb_s: float, tflop_s: float, num_bytes: float, num_flops: float, took_s: float
) -> None:
    timing = Timing(took_s, took_s, took_s)
    found = judge("it", timing, Work(num_bytes, num_flops), Rates(gb_s, tflop_s)).figures
    of_bytes = num_bytes / took_s / 1e9 / gb_s
    of_flops = num_flops / took_s / 1e12 / tflop_s
    assert found["share"] == pytest.approx(max(of_bytes, of_flops))
    stated = "gb_s" if of_bytes >= of_flops else "tflop_s"
    ceiling = {"gb_s": gb_s, "tflop_s": tflop_s}[stated]
    assert found[f"ceiling_{stated}"] == ceiling
    assert found[stated] == pytest.approx(max(of_bytes, of_flops) * ceiling)


@cases(60)
@given(CHUNKS)
def test_attention_counts_what_is_seen_alone(chunks: list[tuple[int, int]]) -> None:
    work = AttentionCase("it", tuple(chunks), shape=TINY).work
    seen = sum(
        1
        for length, num_new in chunks
        for position in range(length - num_new, length)
        for key in range(length)
        if key <= position
    )
    assert work.num_flops == seen * TINY.num_heads * TINY.width * 2 * 2
    contexts = sum(length for length, _ in chunks) * 2 * TINY.num_kv_heads * TINY.width * 2
    new = sum(num_new for _, num_new in chunks) * 2 * TINY.num_heads * TINY.width * 2
    assert work.num_bytes == contexts + new


@cases(60)
@given(CHUNKS)
def test_contexts_share_no_block(chunks: list[tuple[int, int]]) -> None:
    batch = build_batch(AttentionCase("it", tuple(chunks), shape=TINY), CPU)
    counts = [-(-length // BLOCK_SIZE) for length, _ in chunks]
    rows = [row[:count].tolist() for row, count in zip(batch.block_tables[0], counts, strict=True)]
    ids = [block for row in rows for block in row]
    assert sorted(ids) == list(range(1, sum(counts) + 1))
    slots = iter(batch.slots[0].tolist())
    for row, (length, num_new) in zip(rows, chunks, strict=True):
        for position in range(length - num_new, length):
            assert next(slots) == row[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def test_ceilings_of_the_run_are_taken_again(tmp_path: Path) -> None:
    found = DeviceCeilings(4300.0, 4400.0, 780.0, 50.0, None, 5.0, 20.0, 1.5)
    save(found, tmp_path / "made")
    assert ceilings(Place(CPU, is_rehearsal=False, folder=tmp_path / "made")) == found
    assert found.rates == Rates(4400.0, 780.0)


def llama_elements(size: Llama) -> int:
    """The weights of all layers and the last norm, counted from the shapes of the paper."""
    kv = size.num_kv_heads * size.width
    layer = 2 * size.hidden**2 + 2 * size.hidden * kv + 3 * size.hidden * size.mlp + 2 * size.hidden
    return size.num_layers * layer + size.hidden


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_step_reads_an_untied_table_only_by_the_row(is_tied: bool) -> None:
    size = SIZES["tiny" if is_tied else "tiny-untied"]
    weights, table = count_weights(size), size.vocab * size.hidden
    assert weights.total == llama_elements(size) + table * (1 if is_tied else 2)
    assert weights.body == llama_elements(size)
    for num_requests in (1, 3):
        rows = 0 if is_tied else num_requests * size.hidden
        kv = num_requests * 10 * size.num_layers * 2 * size.num_kv_heads * size.width
        work = decode_work(size, weights, num_requests, context=10)
        assert work.num_bytes == 2 * (llama_elements(size) + table + rows + kv)


def test_the_8b_reads_a_gigabyte_less_than_it_has() -> None:
    weights = count_weights(SIZES["8b"])
    assert weights.total == 8_030_261_248  # by its model card, 8.03B
    assert 2 * (weights.total - weights.step_elements) == 2 * 128256 * 4096


@given(st.integers(1, 5000))
def test_a_prompt_is_as_much_work_as_its_tokens_one_by_one(num_tokens: int) -> None:
    """But for the head, which only the last of them goes through."""
    size = SIZES["tiny"]
    weights = count_tiny()
    one_by_one = num_tokens * decode_work(size, weights, 1, (num_tokens + 1) / 2).num_flops
    left_out = 2 * (num_tokens - 1) * weights.table
    assert prefill_work(size, weights, num_tokens).num_flops == one_by_one - left_out


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10))))
def test_a_device_is_busy_once_where_kernels_overlap(spans: list[tuple[int, int]]) -> None:
    covered = {at for begin, length in spans for at in range(begin, begin + length)}
    assert union((begin, begin + length) for begin, length in spans) == len(covered)


def test_idle_is_what_is_left_of_a_step() -> None:
    assert DeviceTime(3.0, 100, 2).idle_share(4.0) == 0.25
    assert DeviceTime(5.0, 100, 2).idle_share(4.0) == 0.0


def test_a_ratio_is_of_rounds_that_gave_every_token() -> None:
    load, seen = REHEARSED_LOAD._replace(batches=(1, 2)), list[Prompts]()

    def ours(prompts: Prompts) -> float:
        seen.append(prompts)
        return 1e9

    def generate(prompts: Prompts) -> int:
        seen.append(prompts)
        return len(prompts) * load.num_output

    contest = Contest("it", ours, load, vocab=50)
    found = contest.against("a setting", generate).figures
    assert found["least_ratio"] <= found["ratio"] <= found["most_ratio"]  # type: ignore[operator]
    assert found["tokens_s"] == 1e9
    assert all(len(prompts) == 2 for prompts in seen)
    assert seen[::2] == seen[1::2] and seen[0] != seen[2]
    with pytest.raises(RuntimeError, match="gave 11 tokens"):
        contest.against("a setting", lambda prompts: generate(prompts) - 1)


TILE = st.builds(TileShape, *(st.sampled_from([1, 16, 64]),) * 4)


@cases(60)
@given(st.dictionaries(TILE, st.none() | st.floats(1e-6, 1)), TILE, st.floats(1e-6, 1))
def test_the_rule_is_told_beside_the_best_tile_that_runs(
    others: dict[TileShape, float | None], rule: TileShape, rule_s: float
) -> None:
    times_s = {**others, rule: rule_s}
    case = AttentionCase("it", ((8, 1),), shape=TINY)
    figures = summarise(case, rule, times_s, num_left=3).figures
    run = [time_s for time_s in times_s.values() if time_s is not None]
    assert figures["times_best"] == rule_s / min(run)
    assert figures["best_1_ms"] == 1e3 * min(run)
    assert (figures["num_tried"], figures["num_unfit"]) == (len(run), len(times_s) - len(run))


def test_what_is_swapped_is_scattered_over_a_store() -> None:
    store = build_store(REHEARSED, CPU)
    num_blocks = len(store.tensors[0])
    for seed in (0, 1):
        blocks = scattered(REHEARSED, seed)
        assert len(set(blocks)) == len(blocks) == 3  # 40 tokens in blocks of 16
        assert min(blocks) > 0
        assert max(blocks) < num_blocks
