"""Layers in groups: each layer has one tensor, one id serves all tensors, padding is the least."""

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.layout import (
    MAX_GROUPS,
    Layout,
    build_layout,
    choose_group_size,
    num_padding,
    unify,
)
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV

TOKEN_KV = TokenKV(num_kv_heads=2, head_size=8, v_head_size=8, element_bytes=2)
OTHER = TokenKV(num_kv_heads=1, head_size=8, v_head_size=8, element_bytes=2)
WINDOW = AttentionPattern(AttentionType.SLIDING, 8)

specs = st.lists(
    st.one_of(
        st.none(),
        st.builds(
            KVSpec,
            st.sampled_from([TOKEN_KV, TOKEN_KV, TOKEN_KV, OTHER]),
            st.sampled_from([FULL, WINDOW, AttentionPattern(AttentionType.CHUNKED, 16)]),
        ),
    ),
    max_size=40,
)


def mixed_specs(full: int, sliding: int) -> list[KVSpec]:
    return [KVSpec(TOKEN_KV)] * full + [KVSpec(TOKEN_KV, WINDOW)] * sliding


@given(specs, st.booleans())
def test_every_layer_has_one_tensor_in_a_group_of_its_kind(
    layers: list[KVSpec | None], hybrid: bool
) -> None:
    layout = build_layout(layers, hybrid=hybrid)
    tensor_indices = layout.tensor_indices()
    assert sorted(tensor_indices) == [
        index for index, spec in enumerate(layers) if spec is not None
    ]
    assert len(set(tensor_indices.values())) == len(tensor_indices)
    for layer, (group, tensor) in tensor_indices.items():
        spec = layers[layer]
        assert spec is not None
        assert layout.token_kvs[tensor] == spec.token_kv, (
            "one tensor's rows hold any group's tokens"
        )
        pattern = layout.groups[group].pattern
        assert pattern in (spec.pattern, FULL), "never forgets earlier than the layer may"
        if not hybrid:
            assert pattern == FULL
    assert layout.num_padding == len(layout.groups) * len(layout.token_kvs) - len(tensor_indices)


@given(st.lists(st.integers(1, 80), min_size=1, max_size=3))
def test_no_size_within_the_bound_pads_less(counts: list[int]) -> None:
    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    size = choose_group_size(counts)
    assert num_groups(size) <= max(MAX_GROUPS, len(counts))
    for other in (gcd(*counts), min(counts)):
        if num_groups(other) <= MAX_GROUPS:
            assert num_padding(counts, size) <= num_padding(counts, other)


def test_twenty_of_one_and_thirty_of_another_waste_nothing() -> None:
    """The minimum count would pad 10 of 60 places; the common divisor none."""
    layout = build_layout(mixed_specs(full=20, sliding=30))
    assert len(layout.token_kvs) == 10
    assert (len(layout.groups), layout.num_padding) == (5, 0)


def test_counts_without_a_common_divisor_pad_rather_than_scatter() -> None:
    """5 full layers and 29 with a window: one more place is better than 34 block tables."""
    layout = build_layout(mixed_specs(full=5, sliding=29))
    assert (len(layout.groups), len(layout.token_kvs), layout.num_padding) == (7, 5, 1)
    assert layout.padding_share == 1 / 35


def test_a_uniform_model_is_one_group_with_a_tensor_for_each_layer() -> None:
    for pattern in (FULL, WINDOW):
        layout = build_layout([KVSpec(TOKEN_KV, pattern)] * 7)
        assert layout.patterns == (pattern,)
        assert len(layout.token_kvs) == 7
        assert layout.block_bytes(16) == 7 * 16 * TOKEN_KV.token_bytes


def test_hybrid_off_keeps_everything_of_every_layer() -> None:
    layout = build_layout(mixed_specs(full=2, sliding=10), hybrid=False)
    assert layout.patterns == (FULL,)
    assert layout.block_bytes(1) == 12 * TOKEN_KV.token_bytes


def test_tokens_of_different_size_share_no_tensor_and_so_form_one_group() -> None:
    layout = build_layout([KVSpec(TOKEN_KV), KVSpec(OTHER, WINDOW)])
    assert layout.patterns == (FULL,)
    assert layout.token_kvs == (TOKEN_KV, OTHER)


def test_a_model_without_attention_has_no_groups_and_no_tensors() -> None:
    assert build_layout([None, None]) == Layout((), ())
    assert build_layout([]).padding_share == 0


def test_the_worst_request_is_summed_over_the_groups() -> None:
    layout = build_layout(mixed_specs(full=2, sliding=10))
    assert len(layout.groups) == 6
    worst = layout.max_blocks(1000, block_size=4, max_chunk_tokens=5)
    assert worst == 250 + 5 * (-(-(7 + 5) // 4) + 1)


def test_ranks_have_one_layout() -> None:
    layout = build_layout(mixed_specs(full=2, sliding=10))
    assert unify([layout, layout, layout]) == layout
    with pytest.raises(ValueError, match="rank 1 groups its layers otherwise"):
        unify([layout, build_layout(mixed_specs(full=3, sliding=9))])
    with pytest.raises(ValueError, match="32 bytes in rank 2 and 64 in rank 0"):
        whole, half = (TokenKV(heads, 8, 8, element_bytes=2) for heads in (2, 1))
        unify([build_layout([KVSpec(token_kv)]) for token_kv in (whole, whole, half)])
    with pytest.raises(ValueError, match="no ranks"):
        unify([])
