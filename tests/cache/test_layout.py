"""Layers in groups: each layer has one tensor, one id serves all tensors, padding is the least."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.layout import (
    MAX_TABLES,
    CacheTensor,
    KeptWhole,
    LayerForm,
    LayerKind,
    Layout,
    build_layout,
    choose_num_tensors,
    common_forms,
    request_tensors,
    unify,
)
from quire.cache.sizing import KVCapacity
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV

TOKEN_KV = TokenKV(num_kv_heads=2, head_size=8, v_head_size=8, element_bytes=2)
OTHER = TokenKV(num_kv_heads=1, head_size=8, v_head_size=8, element_bytes=2)
UNLIKE = TokenKV(num_kv_heads=1, head_size=16, v_head_size=8, element_bytes=2)
WINDOW = AttentionPattern(AttentionType.SLIDING, 8)

patterns = st.sampled_from([FULL, WINDOW, AttentionPattern(AttentionType.CHUNKED, 16)])
specs = st.lists(
    st.none() | st.builds(KVSpec, st.sampled_from([TOKEN_KV, TOKEN_KV, TOKEN_KV, OTHER]), patterns),
    max_size=40,
)


@st.composite
def unequal_specs(draw: st.DrawFn) -> list[KVSpec | None]:
    """Layers whose tokens differ in size: heads of one shape, more or fewer of them, or half as
    many of twice the size; quantised or not; perhaps some that divide otherwise."""
    scale_bytes = draw(st.sampled_from([0, 2]))
    size = draw(st.sampled_from([(8, 8), (12, 8)]))
    heads = st.sampled_from(draw(st.sampled_from([(1, 2), (1, 2, 4), (2, 3), (4, 6), (5, 7)])))
    plain = st.builds(lambda n: TokenKV(n, *size, 1, scale_bytes), heads)
    wide = st.builds(lambda n: TokenKV(n, 2 * size[0], 2 * size[1], 1, scale_bytes), heads)
    kinds = draw(st.sampled_from([plain, plain | wide, plain | st.just(UNLIKE)]))
    found = st.none() | st.builds(KVSpec, kinds, patterns)
    return draw(st.lists(found, min_size=1, max_size=40))


def mixed_specs(full: int, sliding: int) -> list[KVSpec]:
    return [KVSpec(TOKEN_KV)] * full + [KVSpec(TOKEN_KV, WINDOW)] * sliding


@given(specs | unequal_specs(), st.booleans())
def test_every_layer_has_one_place_in_a_group_of_its_kind(
    layers: list[KVSpec | None], hybrid: bool
) -> None:
    layout = build_layout(layers, hybrid=hybrid)
    places = layout.layer_places()
    assert sorted(places) == [index for index, spec in enumerate(layers) if spec is not None]
    assert len(set(places.values())) == len(places)
    for layer, place in places.items():
        spec, table = layers[layer], layout.tables[place.table]
        assert spec is not None
        assert layout.tensors[place.tensor].forms[place.form] == (spec.token_kv, table.num_parts)
        pattern = layout.groups[table.group].pattern
        assert pattern in (spec.pattern, FULL), "never forgets earlier than the layer may"
        if not hybrid:
            assert pattern == FULL
        assert layer in layout.groups[table.group].layers
    assert layout.num_padding == layout.num_places - len(places)


@given(specs | unequal_specs())
def test_a_block_has_equal_bytes_in_every_group_and_layers_of_a_group_share_none(
    layers: list[KVSpec | None],
) -> None:
    layout = build_layout(layers)
    places = layout.layer_places()
    if len(layout.groups) > 1:
        assert len(set(layout.tensors)) == 1, "every group uses all tensors"
    for tensor in layout.tensors:
        widths = {
            tuple(num_parts * part for part in kv.part_bytes[: 1 if kv.is_latent else 2])
            for kv, num_parts in tensor.forms
        }
        assert len(widths) == 1, "all forms fill the keys and values to the last byte"
        scales = [parts * kv.num_kv_heads * kv.scale_bytes for kv, parts in tensor.forms]
        own = scales[:1] if len(set(scales)) == 1 else scales
        assert tensor.token_bytes == sum(next(iter(widths))) + 2 * sum(own)
    for index in range(len(layout.groups)):
        held = [
            (place.tensor, layout.tables[place.table].part)
            for place in places.values()
            if layout.tables[place.table].group == index
        ]
        assert len(set(held)) == len(held)
        assert all(part < layout.num_parts(layout.groups[index]) for _, part in held)


@given(unequal_specs())
def test_layers_are_kept_whole_only_where_groups_would_not_pay(
    layers: list[KVSpec | None],
) -> None:
    layout = build_layout(layers)
    known = [spec for spec in layers if spec is not None]
    by_option = build_layout(layers, hybrid=False)
    if layout.kept_whole is None:
        long = {spec.token_kv.token_bytes for spec in known if spec.pattern == FULL}
        assert layout.unseen_token_bytes == 0
        if by_option.kept_whole is not None:
            assert by_option.kept_whole is KeptWhole.OPTION
            assert layout.passed_token_bytes <= by_option.passed_token_bytes
        assert bool(long) == (layout.passed_token_bytes > 0)
        return
    assert by_option.kept_whole is layout.kept_whole, "the option would change nothing"
    assert layout.patterns == (FULL,)
    assert layout.passed_token_bytes == sum(spec.token_kv.token_bytes for spec in known)
    assert layout.unseen_token_bytes == sum(
        spec.token_kv.token_bytes for spec in known if spec.pattern != FULL
    )
    if layout.kept_whole is KeptWhole.UNEQUAL:
        assert any(spec.token_kv == UNLIKE for spec in known)


kinds = st.lists(
    st.builds(LayerKind, patterns, st.integers(1, 80), st.integers(1, 4)),
    min_size=1,
    max_size=3,
    unique_by=lambda kind: (kind.pattern, kind.num_parts),
)


@given(kinds)
def test_no_number_of_tensors_within_the_bound_takes_less(kinds: list[LayerKind]) -> None:
    def num_tables(size: int) -> int:
        return sum(kind.num_tables(size) for kind in kinds)

    size = choose_num_tensors(kinds)
    least = sum(min(kind.num_layers, kind.num_parts) for kind in kinds)
    assert num_tables(size) <= max(MAX_TABLES, least)
    for other in range(1, 81):
        if num_tables(other) <= MAX_TABLES:
            assert request_tensors(kinds, size) <= request_tensors(kinds, other)


@pytest.mark.parametrize(
    ("element_bytes", "scale_bytes", "most"), [(2, 0, 1.0), (1, 2, 1.01)], ids=["bf16", "fp8"]
)
def test_windows_of_wide_layers_beside_narrow_full_ones_save_what_they_should(
    element_bytes: int, scale_bytes: int, most: float
) -> None:
    """60 layers, 5 of 6 with a window of 1,024: 110 GiB if kept whole, 12.4 GiB by the specs."""
    wide = TokenKV(16, 256, 256, element_bytes, scale_bytes)
    narrow = TokenKV(4, 512, 512, element_bytes, scale_bytes)
    window = AttentionPattern(AttentionType.SLIDING, 1024)
    layers = ([KVSpec(wide, window)] * 5 + [KVSpec(narrow)]) * 10
    layout = build_layout(layers)
    assert (len(layout.groups), len(layout.tensors), len(layout.tables)) == (11, 5, 12)
    assert layout.num_padding == 0

    def request_bytes(layout: Layout) -> int:
        capacity = KVCapacity(layout, 1, block_size=16, max_chunk_tokens=2048)
        return capacity.max_blocks(131_072) * capacity.block_bytes

    needed = sum(request_bytes(build_layout([spec])) for spec in layers)
    assert request_bytes(layout) <= most * needed
    assert request_bytes(build_layout(layers, hybrid=False)) > 8 * needed
    if not scale_bytes:
        assert needed / 2**30 == pytest.approx(12.36, abs=0.01)


def test_scales_that_divide_otherwise_are_apart() -> None:
    wide, narrow = TokenKV(16, 256, 256, 1, 2), TokenKV(4, 512, 512, 1, 2)
    forms = common_forms([wide, narrow])
    assert forms == (LayerForm(wide), LayerForm(narrow, num_parts=2))
    tensor = CacheTensor(forms)
    assert not tensor.shares_scales
    assert tensor.part_bytes == (4096, 4096, 32, 32, 16, 16)
    halves = common_forms([TokenKV(16, 256, 256, 1, 2), TokenKV(8, 256, 256, 1, 2)])
    assert halves is not None and CacheTensor(halves).part_bytes == (4096, 4096, 32, 32)


def test_layers_that_share_keep_nothing_and_lie_where_their_sources_do() -> None:
    layers = [KVSpec(TOKEN_KV), KVSpec(TOKEN_KV, WINDOW), None, None]
    for hybrid in (True, False):
        layout = build_layout(layers, hybrid=hybrid, sources={2: 1, 3: 0})
        places = layout.layer_places()
        assert (places[2], places[3]) == (places[1], places[0])
        assert layout.layer_bytes == 2 * TOKEN_KV.token_bytes


def test_twenty_of_one_and_thirty_of_another_waste_nothing() -> None:
    """The minimum count would pad 10 of 60 places; the common divisor none."""
    layout = build_layout(mixed_specs(full=20, sliding=30))
    assert len(layout.tensors) == 10
    assert (len(layout.groups), layout.num_padding) == (5, 0)


def test_counts_without_a_common_divisor_pad_rather_than_scatter() -> None:
    """5 full layers and 29 with a window: one more place is better than 34 block tables."""
    layout = build_layout(mixed_specs(full=5, sliding=29))
    assert (len(layout.groups), len(layout.tensors), layout.num_padding) == (7, 5, 1)
    assert layout.padding_share == 1 / 35


def test_a_uniform_model_is_one_group_with_a_tensor_for_each_layer() -> None:
    for pattern in (FULL, WINDOW):
        layout = build_layout([KVSpec(TOKEN_KV, pattern)] * 7)
        assert layout.patterns == (pattern,)
        assert len(layout.tensors) == 7
        assert layout.block_bytes(16) == 7 * 16 * TOKEN_KV.token_bytes


def test_hybrid_off_keeps_everything_of_every_layer() -> None:
    layout = build_layout(mixed_specs(full=2, sliding=10), hybrid=False)
    assert layout.patterns == (FULL,)
    assert layout.block_bytes(1) == 12 * TOKEN_KV.token_bytes


def test_padding_in_groups_that_keep_every_token_weighs_more_than_in_windows() -> None:
    """10 full layers and 52 with a window: 4 in a group pad 2 places, but of every token."""
    layout = build_layout(mixed_specs(full=10, sliding=52))
    assert (len(layout.groups), len(layout.tensors), layout.num_padding) == (13, 5, 3)
    assert layout.passed_token_bytes == 10 * TOKEN_KV.token_bytes


def test_tokens_that_divide_otherwise_form_one_group() -> None:
    layout = build_layout([KVSpec(UNLIKE), KVSpec(OTHER, WINDOW)])
    assert (layout.patterns, layout.kept_whole) == ((FULL,), KeptWhole.UNEQUAL)
    assert [tensor.forms for tensor in layout.tensors] == [((UNLIKE, 1),), ((OTHER, 1),)]


def test_few_layers_whose_sizes_have_no_small_ratio_form_one_group() -> None:
    layers = [KVSpec(TokenKV(5, 8, 8, 2))] * 3 + [KVSpec(TokenKV(7, 8, 8, 2), WINDOW)] * 2
    assert build_layout(layers).kept_whole is KeptWhole.COSTLY


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
