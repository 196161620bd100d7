"""The host's memory beside a GPU: exactly what is asked for is pinned, and given back."""

from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.sizing import TooLittleMemory
from quire.models.config import KVCacheDtype, KVOptions, KVSize, LayerFacts, ModelFacts
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store
from quire.models.kv.pinned import pinned_zeros


class Pages:
    """Pins by noting it; `max_bytes` is how much may be pinned."""

    def __init__(self, max_bytes: int = 1 << 40) -> None:
        self.max_bytes = max_bytes
        self.pinned: dict[int, int] = {}

    def pin(self, address: int, num_bytes: int) -> str | None:
        if num_bytes > self.max_bytes:
            return "so much cannot be had"
        self.pinned[address] = num_bytes
        return None

    def unpin(self, address: int) -> None:
        del self.pinned[address]


@given(st.integers(1, 1 << 22), st.booleans())
def test_what_is_pinned_is_as_large_as_asked_and_given_back(
    num_bytes: int, huge_pages: bool
) -> None:
    pages = Pages()
    memory = pinned_zeros(num_bytes, pages, huge_pages=huge_pages)
    assert pages.pinned == {memory.zeros.data_ptr(): num_bytes}
    assert memory.zeros.shape == (num_bytes,) and not memory.zeros.any()
    memory.unpin()
    assert not pages.pinned


def test_what_cannot_be_pinned_is_refused_with_the_numbers() -> None:
    with pytest.raises(TooLittleMemory, match=r"3\.00 GiB .* so much cannot be had"):
        pinned_zeros(3 << 30, Pages(max_bytes=1 << 30), huge_pages=True)


class CUDAError(Enum):
    """As CUDA's runtime numbers its errors."""

    success = 0
    memory_allocation = 2

    def __int__(self) -> int:
        return self.value


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """A runtime of CUDA, as far as pinning goes."""
    pages = Pages()

    def register(address: int, num_bytes: int, _flags: int) -> CUDAError:
        why_not = pages.pin(address, num_bytes)
        return CUDAError.success if why_not is None else CUDAError.memory_allocation

    found = SimpleNamespace(
        cudaHostRegister=register,
        cudaHostUnregister=pages.unpin,
        cudaGetErrorString=lambda error: error.name,
        cudaError=CUDAError,
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    yield pages
    assert not pages.pinned


def build(num_host_blocks: int) -> KVStore:
    """A store on a device that is not the host."""
    facts = ModelFacts("made up", (LayerFacts(0, 2, 12, 8, scale=1.0),), 2, 1000, (), "any", 4)
    return build_kv_store(
        facts.layout(KVOptions()),
        KVSize(5, 16, num_host_blocks),
        codec=choose_codec(KVCacheDtype.AUTO, torch.float32),
        device=torch.device("meta"),
    )


def test_a_store_beside_a_gpu_has_its_rows_pinned_as_long_as_it_lives(runtime: Pages) -> None:
    store = build(3)
    assert store.host is not None
    assert runtime.pinned == {store.host.data_ptr(): 3 * 16 * 2 * (12 + 8) * 4}
    del store
    assert not runtime.pinned


def test_a_gpu_that_cannot_pin_says_so_before_it_serves(runtime: Pages) -> None:
    runtime.max_bytes = 1 << 20
    with pytest.raises(TooLittleMemory, match=r"CUDA says .memory_allocation. \(2\)"):
        build(1000)
