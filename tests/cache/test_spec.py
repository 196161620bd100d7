"""What a token takes, for how long it is needed, and the worst case that follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV

TOKEN_KV = TokenKV(num_kv_heads=2, head_size=64, v_head_size=32, element_bytes=2)
LATENT = TokenKV(num_kv_heads=1, head_size=576, v_head_size=0, element_bytes=2)

patterns = st.one_of(
    st.just(FULL),
    st.builds(
        AttentionPattern,
        st.sampled_from([AttentionType.SLIDING, AttentionType.CHUNKED]),
        st.integers(1, 40),
    ),
)


def test_a_token_takes_its_keys_and_values() -> None:
    assert TOKEN_KV.token_bytes == 2 * (64 + 32) * 2


def test_latent_attention_keeps_one_vector_instead_of_two() -> None:
    assert LATENT.token_bytes == 576 * 2
    assert LATENT.is_latent and not TOKEN_KV.is_latent


def test_scales_count_for_each_head_and_for_keys_and_values_apart() -> None:
    assert TokenKV(2, 64, 32, 1, scale_bytes=2).token_bytes == 2 * (64 + 32) + 4 * 2
    assert TokenKV(1, 576, 0, 1, scale_bytes=2).token_bytes == 576 + 2


token_kvs = st.builds(
    TokenKV,
    num_kv_heads=st.integers(1, 64),
    head_size=st.integers(1, 256),
    v_head_size=st.integers(0, 256),
    element_bytes=st.sampled_from([1, 2, 4]),
    scale_bytes=st.sampled_from([0, 2]),
)


@given(token_kvs, st.integers(1, 70))
def test_workers_keep_equal_parts_of_a_token_or_are_refused(
    token_kv: TokenKV, num_ways: int
) -> None:
    if token_kv.is_latent:
        assert token_kv.shard(num_ways) == token_kv, "one vector has no heads to split"
    elif token_kv.num_kv_heads % num_ways:
        with pytest.raises(
            ValueError, match=f"{token_kv.num_kv_heads} KV heads .* {num_ways} ways"
        ):
            token_kv.shard(num_ways)
    else:
        part = token_kv.shard(num_ways)
        assert num_ways * part.token_bytes == token_kv.token_bytes
        assert (part.head_size, part.v_head_size) == (token_kv.head_size, token_kv.v_head_size)


@pytest.mark.parametrize("num_ways", [-2, 0, 4, 5, 12])
def test_heads_that_cannot_be_split_name_the_ways_that_would_do(num_ways: int) -> None:
    token_kv = TokenKV(num_kv_heads=6, head_size=64, v_head_size=64, element_bytes=2)
    with pytest.raises(ValueError, match=f"6 KV heads .* {num_ways} ways, but 1, 2, 3, 6"):
        token_kv.shard(num_ways)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="full attention has no window or chunk size, but 3"):
        AttentionPattern(AttentionType.FULL, 3)
    with pytest.raises(ValueError, match="size of sliding_window is 0, must be 1 or more"):
        AttentionPattern(AttentionType.SLIDING, 0)
    with pytest.raises(ValueError, match="size of chunked_local is None"):
        AttentionPattern(AttentionType.CHUNKED)
    with pytest.raises(ValueError, match="latent attention with sliding_window"):
        KVSpec(LATENT, AttentionPattern(AttentionType.SLIDING, 8))


@given(patterns, st.integers(0, 200))
def test_what_is_needed_never_comes_back(pattern: AttentionPattern, position: int) -> None:
    first, later = pattern.first_needed(position), pattern.first_needed(position + 1)
    assert 0 <= first <= position
    assert first <= later
    if pattern.attention_type is AttentionType.SLIDING:
        assert position - first + 1 == min(position + 1, pattern.size or 0)


@given(patterns, st.integers(1, 300), st.integers(1, 20), st.integers(1, 40))
def test_the_worst_case_holds_for_every_chunk(
    pattern: AttentionPattern, num_tokens: int, block_size: int, max_chunk_tokens: int
) -> None:
    worst = pattern.max_blocks(num_tokens, block_size=block_size, max_chunk_tokens=max_chunk_tokens)
    assert worst <= -(-num_tokens // block_size), "never more than full attention"
    for start in range(num_tokens):
        end = min(start + max_chunk_tokens, num_tokens)
        first_block = pattern.first_needed(start) // block_size
        assert -(-end // block_size) - first_block <= worst


def test_the_worst_case_of_a_window_by_hand() -> None:
    window = AttentionPattern(AttentionType.SLIDING, 128)
    worst = window.max_blocks(8192, block_size=16, max_chunk_tokens=512)
    assert worst == -(-(127 + 512) // 16) + 1
    assert window.max_blocks(100, block_size=16, max_chunk_tokens=512) == 7
