"""The store takes the bytes it says, and buckets waste no more than they may."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.layout import build_layout
from quire.models.attention.plan import MAX_PADDING, group_by_length
from quire.models.config import LayerFacts
from quire.models.kv_store import Workspace, build_kv_store

LAYERS = [
    LayerFacts(index=0, num_kv_heads=2, k_width=48, v_width=32, scale=1.0),
    LayerFacts(index=1, num_kv_heads=1, k_width=64, v_width=64, scale=1.0, window=8),
]


def test_a_block_takes_the_bytes_that_sizing_counts() -> None:
    layout = build_layout([layer.kv_spec(torch.bfloat16.itemsize) for layer in LAYERS])
    store = build_kv_store(
        layout, num_blocks=7, block_size=4, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    taken = sum(tensor.nbytes for tensor in store.keys + store.values)
    assert taken == 7 * layout.block_bytes(4)


def test_reading_gives_what_was_written() -> None:
    store = build_kv_store(
        build_layout([layer.kv_spec(4) for layer in LAYERS]),
        num_blocks=3,
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    keys, values = torch.randn(2, 5, 1, 64)
    slots = torch.tensor([11, 0, 7, 4, 5])
    store.write(1, keys, values, slots)
    workspace = Workspace()
    for picked in ([0, 1, 2, 3, 4], [3, 1], [2]):
        read = store.read(1, slots[picked], workspace)
        assert torch.equal(read[0], keys[picked])
        assert torch.equal(read[1], values[picked])


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
