"""The store takes the bytes it says, and buckets waste no more than they may."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.layout import ROW_ALIGNMENT, Layout, build_layout
from quire.cache.sizing import BLOCK_SIZES
from quire.cache.spec import KVSpec, TokenKV
from quire.models.attention.plan import MAX_PADDING, group_by_length
from quire.models.config import KVCacheDtype, KVOptions, KVSize, LayerFacts, ModelFacts
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import GatherWorkspace, KVStore, build_kv_store
from tests.profiles import cases

CPU = torch.device("cpu")
KEPT_AS = list(KVCacheDtype)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def layout_of(layers: list[LayerFacts], dtype: torch.dtype, options: KVOptions) -> Layout:
    numbered = tuple(replace(layer, index=index) for index, layer in enumerate(layers))
    facts = ModelFacts("made up", numbered, 2, 1000, (), "any", dtype.itemsize)
    return facts.layout(options)


def build(
    layout: Layout,
    dtype: torch.dtype,
    kept_as: KVCacheDtype,
    *,
    num_blocks: int = 7,
    num_host_blocks: int = 0,
) -> KVStore:
    return build_kv_store(
        layout,
        KVSize(num_blocks, 4, num_host_blocks),
        codec=choose_codec(kept_as, dtype),
        device=CPU,
    )


def layer(kv_heads: int, widths: tuple[int, int], kind: str, reach: int) -> LayerFacts:
    facts = LayerFacts(0, kv_heads, *widths, scale=1.0, is_latent=kind == "latent")
    if kind == "window":
        return replace(facts, window_size=reach)
    return replace(facts, chunk_size=reach) if kind == "chunk" else facts


layers = st.builds(
    layer,
    st.integers(1, 3),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.sampled_from(["full", "latent", "window", "chunk"]),
    st.integers(1, 9),
)
models = st.one_of(
    st.lists(layers, min_size=1, max_size=6),
    st.lists(
        st.builds(
            layer,
            st.just(2),
            st.just((48, 32)),
            st.sampled_from(["full", "window", "chunk"]),
            st.sampled_from([4, 8]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([[1, 2], [2, 3], [1, 2, 4]]).flatmap(
        lambda heads: st.lists(
            st.builds(
                layer,
                st.sampled_from(heads),
                st.sampled_from([(12, 8), (24, 16)]),
                st.sampled_from(["full", "window", "chunk"]),
                st.sampled_from([4, 8]),
            ),
            min_size=1,
            max_size=12,
        )
    ),
)


@given(models, st.sampled_from(KEPT_AS), st.booleans(), st.sampled_from(DTYPES))
def test_a_block_takes_the_bytes_that_sizing_counts(
    layers: list[LayerFacts], kept_as: KVCacheDtype, hybrid: bool, dtype: torch.dtype
) -> None:
    layout = layout_of(layers, dtype, KVOptions(kept_as, hybrid))
    store = build(layout, dtype, kept_as)
    assert store.num_bytes == 7 * layout.block_bytes(4)


@given(models, st.sampled_from(KEPT_AS), st.sampled_from(DTYPES))
def test_a_block_of_the_host_is_a_row_of_the_bytes_that_sizing_counts(
    layers: list[LayerFacts], kept_as: KVCacheDtype, dtype: torch.dtype
) -> None:
    """Every tensor has its part where a GPU copies fastest, and no byte is in two of them."""
    layout = layout_of(layers, dtype, KVOptions(kept_as))
    store = build(layout, dtype, kept_as, num_host_blocks=3)
    assert store.host is not None and store.host.shape == (3, layout.host_block_bytes(4))
    written = torch.zeros(store.row_bytes, dtype=torch.int64)
    for tensor, host in zip(store.tensors, store.host_tensors, strict=True):
        assert host.shape == (3, *tensor.shape[1:]) and host.dtype == tensor.dtype
        assert host.data_ptr() % ROW_ALIGNMENT == 0 and host.stride(0) == host[:1].stride(0)
        host[1].view(torch.uint8).fill_(1)
        written += store.host[1]
        host[1].view(torch.uint8).zero_()
    assert written.max() == 1
    num_unused = layout.host_block_bytes(4) - layout.block_bytes(4)
    assert int((written == 0).sum()) == num_unused < ROW_ALIGNMENT * len(store.tensors)
    assert not store.host.any()


@given(
    models.filter(lambda layers: not any(layer.is_latent for layer in layers)),
    st.sampled_from(KEPT_AS),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_layers_never_see_what_others_write(
    layers: list[LayerFacts], kept_as: KVCacheDtype, hybrid: bool, seed: int
) -> None:
    """Each group has a third of the blocks or fewer; all layers fill all slots of theirs, by the
    tables that they attend by, and then read what they wrote."""
    layout = layout_of(layers, torch.float32, KVOptions(kept_as, hybrid))
    num_blocks = 1 + 2 * len(layout.groups)
    store = build(layout, torch.float32, kept_as, num_blocks=num_blocks)
    generator = torch.Generator().manual_seed(seed)
    ids = 1 + torch.randperm(num_blocks - 1, generator=generator)
    written = {}
    for index, facts in enumerate(layers):
        form = layout.tables[store.table(index)]
        blocks = ids[2 * form.group : 2 * form.group + 2] * form.num_parts + form.part
        slots = (blocks[:, None] * 4 + torch.arange(4)).flatten()
        keys, values = (
            torch.randn(8, facts.num_kv_heads, width, generator=generator)
            for width in (facts.head_size, facts.v_head_size)
        )
        store.write(index, keys, values, slots)
        written[index] = slots, keys, values
    for tensor in store.tensors:
        assert not tensor[0].any(), "the null block is nobody's"
    codec = store.codec
    for index, (slots, *own) in written.items():
        kept = [codec.decode(codec.encode(x), torch.empty_like(x)) for x in own]
        for read, wanted in zip(store.read(index, slots, GatherWorkspace()), kept, strict=True):
            assert torch.equal(read, wanted)


@given(
    st.integers(1, 8), st.integers(1, 300), st.sampled_from(BLOCK_SIZES), st.sampled_from([2, 4])
)
def test_rows_of_usual_elements_have_no_padding(
    heads: int, width: int, block_size: int, element_bytes: int
) -> None:
    layout = build_layout([KVSpec(TokenKV(heads, width, width, element_bytes))])
    assert layout.host_block_bytes(block_size) == layout.block_bytes(block_size)


@pytest.mark.parametrize("kept_as", KEPT_AS)
@pytest.mark.parametrize("kind", ["full", "latent"])
def test_reading_gives_what_was_written(kind: str, kept_as: KVCacheDtype) -> None:
    facts = [layer(2, (48, 32), kind, 0), layer(1, (64, 40), kind, 0)]
    store = build(layout_of(facts, torch.float32, KVOptions(kept_as)), torch.float32, kept_as)
    keys, values = torch.randn(5, 1, 64), torch.randn(5, 1, 40)
    slots = torch.tensor([11, 0, 7, 4, 5])
    store.write(1, keys, values, slots)
    codec, workspace = store.codec, GatherWorkspace()
    keys, values = (codec.decode(codec.encode(x), torch.empty_like(x)) for x in (keys, values))
    for picked in ([0, 1, 2, 3, 4], [3, 1], [2]):
        read = store.read(1, slots[picked], workspace)
        assert torch.equal(read[0], keys[picked])
        assert torch.equal(read[1], keys[picked] if kind == "latent" else values[picked])


@pytest.mark.parametrize("kept_as", KEPT_AS)
@pytest.mark.parametrize("slot", [-1, 7 * 4])
def test_a_slot_that_is_not_there_is_neither_written_nor_read(
    slot: int, kept_as: KVCacheDtype
) -> None:
    facts = [layer(2, (48, 32), "full", 0)]
    store = build(layout_of(facts, torch.float32, KVOptions(kept_as)), torch.float32, kept_as)
    slots = torch.tensor([slot])
    with pytest.raises((IndexError, RuntimeError), match="index"):
        store.write(0, torch.ones(1, 2, 48), torch.ones(1, 2, 32), slots)
    assert not any(tensor.view(torch.uint8).any() for tensor in store.tensors)
    with pytest.raises((IndexError, RuntimeError), match="index"):
        store.read(0, slots, GatherWorkspace())


@pytest.mark.parametrize("kept_as", KEPT_AS)
def test_a_latent_layer_keeps_one_tensor_and_reads_the_value_from_it(kept_as: KVCacheDtype) -> None:
    latent = layer(1, (40, 32), "latent", 0)
    store = build(layout_of([latent], torch.float32, KVOptions(kept_as)), torch.float32, kept_as)
    assert store.values == (None,)
    assert len(store.tensors) == (1 if kept_as is KVCacheDtype.AUTO else 2)
    keys, values = store.read(0, torch.tensor([3, 1]), GatherWorkspace())
    assert keys.data_ptr() == values.data_ptr()


@pytest.mark.parametrize("kept_as", KEPT_AS)
@pytest.mark.parametrize("kind", ["full", "latent"])
def test_keys_and_values_never_move(kind: str, kept_as: KVCacheDtype) -> None:
    facts = [layer(2, (48, 32), kind, 0)]
    store = build(layout_of(facts, torch.float32, KVOptions(kept_as)), torch.float32, kept_as)
    addresses = [tensor.data_ptr() for tensor in store.tensors]
    workspace = GatherWorkspace()
    for num_tokens in (1, 28, 5):
        slots = torch.arange(num_tokens)
        store.write(0, torch.randn(num_tokens, 2, 48), torch.randn(num_tokens, 2, 32), slots)
        store.read(0, slots, workspace)
        assert [tensor.data_ptr() for tensor in store.tensors] == addresses


@pytest.mark.parametrize("kept_as", KEPT_AS)
def test_memory_that_nobody_wrote_is_not_touched(kept_as: KVCacheDtype) -> None:
    """The machine hands out pages for one token and one block of the host, of gigabytes for
    blocks."""
    wide = layer(8, (4096, 4096), "full", 0)
    layout = layout_of([wide], torch.float32, KVOptions(kept_as))
    store = build(layout, torch.float32, kept_as, num_blocks=20000, num_host_blocks=20000)
    assert store.num_bytes > 4 * 2**30
    before = resident_bytes()
    store.host_tensors[-1][19_000].fill_(1)
    token = torch.ones(1, 8, 4096)
    store.write(0, token, token, torch.tensor([70001]))
    assert resident_bytes() - before < 16 * 2**20


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


@cases(100)
@given(st.lists(st.integers(1, 9000), max_size=40), st.integers(1, 20000))
def test_buckets_hold_every_sequence_once_and_bound_the_padding(
    lengths: list[int], max_tokens: int
) -> None:
    seqs = list(range(len(lengths)))
    groups = group_by_length(seqs, lengths, max_tokens)
    assert sorted(seq for group in groups for seq in group) == seqs
    for group in groups:
        padded = len(group) * max(lengths[seq] for seq in group)
        assert padded <= MAX_PADDING * sum(lengths[seq] for seq in group)
        assert padded <= max_tokens or len(group) == 1


def test_equal_lengths_make_one_bucket_in_order() -> None:
    assert group_by_length([0, 2, 5], [7] * 6, 100) == [[0, 2, 5]]
