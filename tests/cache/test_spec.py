"""What a token takes, for how long it is needed, and the worst case that follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import FULL, Kind, KVSpec, Page, Retention

PAGE = Page(num_kv_heads=2, k_width=64, v_width=32, element_bytes=2)
LATENT = Page(num_kv_heads=1, k_width=576, v_width=0, element_bytes=2)

retentions = st.one_of(
    st.just(FULL),
    st.builds(Retention, st.sampled_from([Kind.SLIDING, Kind.LOCAL]), st.integers(1, 40)),
)


def test_a_page_is_the_keys_and_values_of_a_token() -> None:
    assert PAGE.token_bytes == 2 * (64 + 32) * 2


def test_latent_attention_keeps_one_vector_instead_of_two() -> None:
    assert LATENT.token_bytes == 576 * 2
    assert LATENT.is_latent and not PAGE.is_latent


def test_scales_count_for_each_head_and_for_keys_and_values_apart() -> None:
    assert Page(2, 64, 32, 1, scale_bytes=2).token_bytes == 2 * (64 + 32) + 4 * 2
    assert Page(1, 576, 0, 1, scale_bytes=2).token_bytes == 576 + 2


pages = st.builds(
    Page,
    num_kv_heads=st.integers(1, 64),
    k_width=st.integers(1, 256),
    v_width=st.integers(0, 256),
    element_bytes=st.sampled_from([1, 2, 4]),
    scale_bytes=st.sampled_from([0, 2]),
)


@given(pages, st.integers(1, 70))
def test_workers_keep_equal_parts_of_a_page_or_are_refused(page: Page, num_ways: int) -> None:
    if page.is_latent:
        assert page.shard(num_ways) == page, "one vector has no heads to split"
    elif page.num_kv_heads % num_ways:
        with pytest.raises(ValueError, match=f"{page.num_kv_heads} KV heads .* {num_ways} ways"):
            page.shard(num_ways)
    else:
        part = page.shard(num_ways)
        assert num_ways * part.token_bytes == page.token_bytes
        assert (part.k_width, part.v_width) == (page.k_width, page.v_width)


@pytest.mark.parametrize("num_ways", [-2, 0, 4, 5, 12])
def test_heads_that_cannot_be_split_name_the_ways_that_would_do(num_ways: int) -> None:
    page = Page(num_kv_heads=6, k_width=64, v_width=64, element_bytes=2)
    with pytest.raises(ValueError, match=f"6 KV heads .* {num_ways} ways, but 1, 2, 3, 6"):
        page.shard(num_ways)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="full attention has no reach, but 3"):
        Retention(Kind.FULL, 3)
    with pytest.raises(ValueError, match="reach of sliding_window is 0, must be 1 or more"):
        Retention(Kind.SLIDING, 0)
    with pytest.raises(ValueError, match="reach of chunked_local is None"):
        Retention(Kind.LOCAL)
    with pytest.raises(ValueError, match="latent attention with sliding_window"):
        KVSpec(LATENT, Retention(Kind.SLIDING, 8))


@given(retentions, st.integers(0, 200))
def test_what_is_needed_never_comes_back(retention: Retention, position: int) -> None:
    first, later = retention.first_needed(position), retention.first_needed(position + 1)
    assert 0 <= first <= position
    assert first <= later
    if retention.kind is Kind.SLIDING:
        assert position - first + 1 == min(position + 1, retention.reach or 0)


@given(retentions, st.integers(1, 300), st.integers(1, 20), st.integers(1, 40))
def test_the_worst_case_holds_for_every_chunk(
    retention: Retention, num_tokens: int, block_size: int, max_chunk_tokens: int
) -> None:
    worst = retention.max_blocks(
        num_tokens, block_size=block_size, max_chunk_tokens=max_chunk_tokens
    )
    assert worst <= -(-num_tokens // block_size), "never more than full attention"
    for start in range(num_tokens):
        end = min(start + max_chunk_tokens, num_tokens)
        first_block = retention.first_needed(start) // block_size
        assert -(-end // block_size) - first_block <= worst


def test_the_worst_case_of_a_window_by_hand() -> None:
    window = Retention(Kind.SLIDING, 128)
    worst = window.max_blocks(8192, block_size=16, max_chunk_tokens=512)
    assert worst == -(-(127 + 512) // 16) + 1
    assert window.max_blocks(100, block_size=16, max_chunk_tokens=512) == 7
