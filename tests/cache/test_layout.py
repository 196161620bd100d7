"""Layers into groups: each layer has one place, one id serves all tensors, padding is the least."""

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
from quire.cache.spec import FULL, Kind, KVSpec, Page, Retention

PAGE = Page(num_kv_heads=2, k_width=8, v_width=8, element_bytes=2)
OTHER = Page(num_kv_heads=1, k_width=8, v_width=8, element_bytes=2)
WINDOW = Retention(Kind.SLIDING, 8)

specs = st.lists(
    st.one_of(
        st.none(),
        st.builds(
            KVSpec,
            st.sampled_from([PAGE, PAGE, PAGE, OTHER]),
            st.sampled_from([FULL, WINDOW, Retention(Kind.LOCAL, 16)]),
        ),
    ),
    max_size=40,
)


def pattern(full: int, sliding: int) -> list[KVSpec]:
    return [KVSpec(PAGE)] * full + [KVSpec(PAGE, WINDOW)] * sliding


@given(specs, st.booleans())
def test_every_layer_has_one_place_of_its_own_kind(
    layers: list[KVSpec | None], hybrid: bool
) -> None:
    layout = build_layout(layers, hybrid=hybrid)
    places = layout.places()
    assert sorted(places) == [index for index, spec in enumerate(layers) if spec is not None]
    assert len(set(places.values())) == len(places)
    for layer, (group, place) in places.items():
        spec = layers[layer]
        assert spec is not None
        assert layout.pages[place] == spec.page, "one tensor's rows hold any group's tokens"
        retention = layout.groups[group].retention
        assert retention in (spec.retention, FULL), "never forgets earlier than the layer may"
        if not hybrid:
            assert retention == FULL
    assert layout.num_padding == len(layout.groups) * len(layout.pages) - len(places)


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
    layout = build_layout(pattern(full=20, sliding=30))
    assert len(layout.pages) == 10
    assert (len(layout.groups), layout.num_padding) == (5, 0)


def test_counts_without_a_common_divisor_pad_rather_than_scatter() -> None:
    """5 full layers and 29 with a window: one more place is better than 34 block tables."""
    layout = build_layout(pattern(full=5, sliding=29))
    assert (len(layout.groups), len(layout.pages), layout.num_padding) == (7, 5, 1)
    assert layout.padding_share == 1 / 35


def test_a_uniform_model_is_one_group_with_a_tensor_for_each_layer() -> None:
    for retention in (FULL, WINDOW):
        layout = build_layout([KVSpec(PAGE, retention)] * 7)
        assert layout.retentions == (retention,)
        assert len(layout.pages) == 7
        assert layout.block_bytes(16) == 7 * 16 * PAGE.token_bytes


def test_hybrid_off_keeps_everything_of_every_layer() -> None:
    layout = build_layout(pattern(full=2, sliding=10), hybrid=False)
    assert layout.retentions == (FULL,)
    assert layout.block_bytes(1) == 12 * PAGE.token_bytes


def test_pages_of_different_size_share_no_tensor_and_so_form_one_group() -> None:
    layout = build_layout([KVSpec(PAGE), KVSpec(OTHER, WINDOW)])
    assert layout.retentions == (FULL,)
    assert layout.pages == (PAGE, OTHER)


def test_a_model_without_attention_has_no_groups_and_no_tensors() -> None:
    assert build_layout([None, None]) == Layout((), ())
    assert build_layout([]).padding_share == 0


def test_the_worst_request_is_summed_over_the_groups() -> None:
    layout = build_layout(pattern(full=2, sliding=10))
    assert len(layout.groups) == 6
    worst = layout.max_blocks(1000, block_size=4, max_chunk_tokens=5)
    assert worst == 250 + 5 * (-(-(7 + 5) // 4) + 1)


def test_workers_agree_on_the_fewest_blocks() -> None:
    layout = build_layout(pattern(full=2, sliding=10))
    assert unify([(layout, 50), (layout, 40), (layout, 60)]) == (layout, 40)
    with pytest.raises(ValueError, match="worker 1 groups its layers otherwise"):
        unify([(layout, 50), (build_layout(pattern(full=3, sliding=9)), 50)])
    with pytest.raises(ValueError, match="32 bytes in worker 2 and 64 in worker 0"):
        whole, half = (Page(heads, 8, 8, element_bytes=2) for heads in (2, 1))
        unify([(build_layout([KVSpec(page)]), 50) for page in (whole, whole, half)])
    with pytest.raises(ValueError, match="no workers"):
        unify([])
