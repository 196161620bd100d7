"""Small stores of any kind, filled with numbers, and copies of them made one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.models.config import KVCacheDtype, KVOptions, KVSize, LayerFacts, ModelFacts
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store

CPU = torch.device("cpu")
NUM_BLOCKS = 5
BLOCK_SIZE = 4
FULL = LayerFacts(0, 2, 12, 8, scale=1.0)
LATENT = LayerFacts(0, 1, 12, 8, scale=1.0, is_latent=True)


def build_store(
    layers: Sequence[LayerFacts], kept_as: KVCacheDtype, dtype: torch.dtype = torch.float32
) -> KVStore:
    """Each byte of the store and of its host is some number below 100."""
    facts = ModelFacts("made up", tuple(layers), 2, 1000, (), "any", dtype.itemsize)
    store = build_kv_store(
        facts.layout(KVOptions(kept_as)),
        KVSize(NUM_BLOCKS, BLOCK_SIZE, NUM_BLOCKS),
        codec=choose_codec(kept_as, dtype),
        device=CPU,
    )
    for tensor in (*store.tensors, *store.host_tensors):
        as_bytes(tensor).random_(0, 100)
    return store


layers = st.builds(
    LayerFacts,
    st.just(0),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
    scale=st.just(1.0),
    is_latent=st.booleans(),
)
stores = st.builds(
    build_store,
    st.lists(layers, min_size=1, max_size=3),
    st.sampled_from(KVCacheDtype),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
"""Layers of any widths, also odd ones."""


@dataclass
class Blocks:
    """The bytes that the device and the host hold, copied one by one and at once."""

    store: KVStore
    device: list[Tensor] = field(init=False)
    host: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.device = [tensor.clone() for tensor in self.store.tensors]
        self.host = [tensor.clone() for tensor in self.store.host_tensors]

    def copy(self, each: BlockCopy) -> None:
        for device, host in zip(self.device, self.host, strict=True):
            source = host if each.kind is CopyKind.IN else device
            target = host if each.kind is CopyKind.OUT else device
            target[each.target] = source[each.source].clone()

    def check(self) -> None:
        store = self.store
        assert same_bytes([*store.tensors, *store.host_tensors], [*self.device, *self.host])


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def same_bytes(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.equal(as_bytes(one), as_bytes(other)) for one, other in pairs)
