"""Budgets become blocks, blocks hold requests, and what does not fit is refused with the numbers
and the remedies.
"""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.layout import Layout, build_layout
from quire.cache.sizing import (
    BLOCK_SIZES,
    BY_BLOCKS,
    BY_BYTES,
    BY_SHARE,
    BY_TOKENS,
    Budget,
    KVCapacity,
    TooLittleMemory,
    budget_after_load,
    budget_before_load,
    useful_blocks,
)
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV

TOKEN_KV = TokenKV(num_kv_heads=2, head_size=8, v_head_size=8, element_bytes=2)
PLAIN = build_layout([KVSpec(TOKEN_KV)] * 4)
HYBRID = build_layout(
    [KVSpec(TOKEN_KV), KVSpec(TOKEN_KV, AttentionPattern(AttentionType.SLIDING, 20))] * 2
)

patterns = st.just(FULL) | st.builds(
    AttentionPattern,
    st.sampled_from([AttentionType.SLIDING, AttentionType.CHUNKED]),
    st.integers(1, 300),
)
layouts = st.lists(patterns.map(lambda kept: KVSpec(TOKEN_KV, kept)), min_size=1, max_size=9).map(
    build_layout
)
rooms = st.builds(
    KVCapacity,
    layouts,
    num_blocks=st.integers(0, 400),
    block_size=st.sampled_from(BLOCK_SIZES),
    max_chunk_tokens=st.integers(1, 600),
)


@given(st.integers(1, 1 << 20), st.sampled_from(BLOCK_SIZES), st.integers(1, 4096))
def test_a_context_of_tokens_is_exactly_its_blocks(
    tokens: int, block_size: int, chunk: int
) -> None:
    """Defect A of FEATURES 1F: a macro for context size returned bytes and ignored block size."""
    blocks = Budget(num_tokens=tokens).blocks(PLAIN, block_size=block_size, max_chunk_tokens=chunk)
    assert blocks is not None
    assert blocks - 1 == -(-tokens // block_size)


@given(layouts, st.integers(1, 2000), st.sampled_from(BLOCK_SIZES), st.integers(1, 600))
def test_a_context_of_tokens_is_enough_for_one_request_of_any_layout(
    layout: Layout, tokens: int, block_size: int, chunk: int
) -> None:
    budget = Budget(num_tokens=tokens)
    blocks = budget.blocks(layout, block_size=block_size, max_chunk_tokens=chunk)
    assert blocks is not None
    KVCapacity(layout, blocks, block_size, chunk).check(tokens, budget)
    with pytest.raises(TooLittleMemory):
        KVCapacity(layout, blocks - 1, block_size, chunk).check(tokens, budget)


@given(st.integers(0, 1 << 40), st.sampled_from(BLOCK_SIZES))
def test_bytes_become_whole_blocks(num_bytes: int, block_size: int) -> None:
    blocks = Budget(num_bytes=num_bytes).blocks(PLAIN, block_size=block_size, max_chunk_tokens=1)
    block_bytes = PLAIN.block_bytes(block_size)
    assert blocks is not None
    assert blocks * block_bytes <= num_bytes < (blocks + 1) * block_bytes


def test_two_budgets_are_an_error_that_names_both() -> None:
    ways = {
        BY_BLOCKS: Budget(num_blocks=9),
        BY_BYTES: Budget(num_bytes=1 << 30),
        BY_TOKENS: Budget(num_tokens=4096),
        BY_SHARE: Budget(share=0.9),
    }
    for first, budget in ways.items():
        assert budget.option == first
        assert budget.is_explicit == (first != BY_SHARE)
        assert budget.device_share == (0.9 if first == BY_SHARE else 1.0)
        for second, other in ways.items():
            if second == first:
                continue
            given_too = {
                name: value
                for name in ("num_blocks", "num_bytes", "num_tokens", "share")
                if (value := getattr(other, name)) is not None
            }
            with pytest.raises(ValueError, match=f"({first} and {second}|{second} and {first}) "):
                replace(budget, **given_too)


@pytest.mark.parametrize(
    "budget", [Budget(num_bytes=1 << 30), Budget(num_tokens=4096), Budget(num_blocks=9)]
)
def test_no_size_is_given_for_a_model_without_attention(budget: Budget) -> None:
    layout = build_layout([None, None])
    with pytest.raises(ValueError, match="but no layer of the model has attention: leave it out"):
        budget.blocks(layout, block_size=16, max_chunk_tokens=1)


def test_a_model_without_attention_has_the_null_block_and_as_many_requests_as_states() -> None:
    layout = build_layout([None, None])
    assert Budget().blocks(layout, block_size=16, max_chunk_tokens=1) == 1
    capacity = KVCapacity(layout, 1, 16, 512, num_states=9)
    assert capacity.concurrency(4096) == 8
    assert capacity.num_tokens(4096) == 8 * 4096
    assert capacity.largest_length(1 << 20) == 1 << 20
    capacity.check(4096, Budget())


def test_states_bound_the_requests_beside_blocks() -> None:
    layout = build_layout([KVSpec(TokenKV(1, 8, 8, 2)), None])
    assert KVCapacity(layout, 41, 16, 512, num_states=4).concurrency(160) == 3
    assert KVCapacity(layout, 21, 16, 512, num_states=4).concurrency(160) == 2


def test_nothing_said_is_a_share() -> None:
    budget = Budget()
    assert (budget.option, budget.device_share, budget.is_explicit) == (BY_SHARE, 0.9, False)
    assert budget.blocks(PLAIN, block_size=16, max_chunk_tokens=1) is None


@given(
    st.integers(0, 1 << 40), st.floats(0.01, 1.0), st.integers(0, 1 << 40), st.integers(0, 1 << 38)
)
def test_before_and_after_the_load_agree_if_weights_are_all_that_was_loaded(
    total: int, share: float, used: int, weights: int
) -> None:
    before = budget_before_load(total=total, used=used, share=share, weight_bytes=weights)
    assert before == budget_after_load(total=total, used=used + weights, share=share)
    assert before + used + weights <= total


def test_the_share_is_of_the_whole_device() -> None:
    assert budget_after_load(total=1000, used=300, share=0.9) == 600
    assert budget_after_load(total=1000, used=950, share=0.9) == -50


def test_unified_memory_is_taken_only_where_it_is_of_use() -> None:
    assert useful_blocks(8, max_num_seqs=4, keeps_prefixes=False) == 33
    assert useful_blocks(8, max_num_seqs=4, keeps_prefixes=True) == 65


@given(rooms, st.integers(1, 3000))
def test_the_largest_length_fits_and_one_more_does_not(capacity: KVCapacity, most: int) -> None:
    longest = capacity.largest_length(most)
    assert 0 <= longest <= most
    assert longest == 0 or capacity.max_blocks(longest) <= capacity.num_usable
    assert longest == most or capacity.max_blocks(longest + 1) > capacity.num_usable


@given(rooms, st.integers(1, 3000))
def test_estimating_the_length_changes_nothing(capacity: KVCapacity, most: int) -> None:
    """Defect C of FEATURES 1F: the estimate wrote into the live configuration."""
    before = (capacity.layout, capacity.num_blocks, capacity.block_size, capacity.max_chunk_tokens)
    first = capacity.largest_length(most)
    assert capacity.largest_length(most) == first
    assert (
        capacity.layout,
        capacity.num_blocks,
        capacity.block_size,
        capacity.max_chunk_tokens,
    ) == before


@given(rooms, st.integers(2, 3000))
def test_a_refusal_has_the_numbers_and_the_length_that_would_fit(
    capacity: KVCapacity, length: int
) -> None:
    budget = Budget()
    if capacity.max_blocks(length) + 1 <= capacity.num_blocks:
        capacity.check(length, budget)
        return
    with pytest.raises(TooLittleMemory) as refused:
        capacity.check(length, budget)
    text = str(refused.value)
    needed = capacity.max_blocks(length) + 1
    assert f"needs {needed} KV blocks ({needed * capacity.block_bytes / 2**20:.1f} MiB" in text
    assert (
        f"but {capacity.num_blocks} ({capacity.num_blocks * capacity.block_bytes / 2**20:.1f} MiB)"
        in text
    )
    found = re.search(r"length that fits is (\d+):", text)
    assert found is not None
    fitting = int(found[1])
    assert fitting == capacity.largest_length(length) < length
    assert (f"pass --max-model-len {fitting}" in text) == (fitting > 1)
    if fitting:
        capacity.check(fitting, budget)


@pytest.mark.parametrize(
    ("budget", "first"),
    [
        (Budget(), BY_SHARE),
        (Budget(share=0.5), BY_SHARE),
        (Budget(num_bytes=5), BY_BYTES),
        (Budget(num_tokens=5), BY_TOKENS),
        (Budget(num_blocks=5), BY_BLOCKS),
    ],
)
def test_no_blocks_are_an_error_that_names_the_remedies(budget: Budget, first: str) -> None:
    with pytest.raises(TooLittleMemory, match="but 0 .* fits is 0: give more memory by") as refused:
        KVCapacity(PLAIN, 0, 16, 64).check(100, budget)
    text = str(refused.value)
    assert (
        text.index(first)
        == min(text.index(option) for option in (BY_SHARE, BY_BYTES, BY_TOKENS) if option in text)
        or first == BY_BLOCKS
    )
    for option in (first, BY_SHARE, BY_BYTES, "--kv-cache-dtype", "--max-num-batched-tokens"):
        assert option in text
    assert text.endswith("and --max-num-seqs")


def test_concurrency_and_tokens_of_a_plain_layout() -> None:
    capacity = KVCapacity(PLAIN, num_blocks=101, block_size=16, max_chunk_tokens=64)
    assert capacity.num_tokens(100) == 1600
    assert capacity.concurrency(100) == 100 / 7
    assert capacity.token_bytes == 4 * 2 * 2 * 8 * 2


def test_windows_let_more_requests_run_at_once() -> None:
    capacity = KVCapacity(HYBRID, num_blocks=1001, block_size=16, max_chunk_tokens=16)
    full, window = 1000, -(-(20 - 1 + 16) // 16) + 1
    assert capacity.max_blocks(16_000) == full + window
    assert capacity.concurrency(16_000) == 1000 / (full + window)
    assert capacity.num_tokens(16_000) == 1000 * 16_000 // (full + window)
    assert capacity.token_bytes == 4 * TOKEN_KV.token_bytes


@pytest.mark.parametrize(
    ("element_bytes", "scale_bytes", "times"), [(4, 0, 1), (2, 0, 2), (1, 0, 4)]
)
def test_smaller_elements_mean_more_blocks(
    element_bytes: int, scale_bytes: int, times: int
) -> None:
    token_kv = TokenKV(2, 64, 64, element_bytes, scale_bytes)
    layout = build_layout([KVSpec(token_kv)] * 3)
    budget = Budget(num_bytes=4096 * 16 * 3 * 4 * 2 * 128)
    assert budget.blocks(layout, block_size=16, max_chunk_tokens=1) == 4096 * times


def test_a_quantised_token_is_a_byte_an_element_and_two_scales_a_head() -> None:
    plain, quantised = TokenKV(2, 64, 64, 2), TokenKV(2, 64, 64, 1, scale_bytes=2)
    assert (plain.token_bytes, quantised.token_bytes) == (512, 256 + 8)
    budget = Budget(num_bytes=1 << 30)
    blocks = [
        budget.blocks(build_layout([KVSpec(token_kv)]), block_size=16, max_chunk_tokens=1)
        for token_kv in (plain, quantised)
    ]
    assert blocks == [(1 << 30) // (16 * 512), (1 << 30) // (16 * 264)]
