"""What is measured of a device, and what of it steps and KV may take."""

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quire.cache.sizing import Budget
from quire.engine.devices import memory
from quire.engine.devices.memory import DeviceMemory, measure, peak_bytes, step_budget

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
MIB = 1 << 20
HOST = DeviceMemory(1000, 400, is_host=True, is_unified=True)
GPU = DeviceMemory(1000, 700, is_host=False, is_unified=False)


def test_a_gpu_gives_the_share_of_the_whole_less_what_is_in_use() -> None:
    assert step_budget(GPU, Budget()) == 900 - 300
    assert step_budget(GPU, Budget(share=0.5)) == 500 - 300
    assert step_budget(GPU, Budget(), weight_bytes=250) == 900 - 300 - 250
    assert step_budget(GPU, Budget(num_blocks=9)) == 700


def test_a_host_gives_the_share_of_half_of_what_is_free() -> None:
    assert step_budget(HOST, Budget()) == 180
    assert step_budget(HOST, Budget(share=0.5)) == 100
    assert step_budget(HOST, Budget(), weight_bytes=200) == 90
    assert step_budget(HOST, Budget(num_tokens=9)) == 400


def test_the_machine_is_measured() -> None:
    found = measure(CPU)
    assert found.is_host and found.is_unified
    assert 0 < found.available <= found.total


def test_a_container_has_what_its_limit_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{60 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {20 * MIB}\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert measure(CPU) == DeviceMemory(100 * MIB, 60 * MIB, is_host=True, is_unified=True)
    (tmp_path / "memory.max").write_text("max\n")
    assert measure(CPU).total > 100 * MIB


@pytest.mark.parametrize("can_forget", [True, False])
def test_a_peak_is_seen_even_after_a_higher_one_has_gone(
    can_forget: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(num_bytes: int) -> Callable[[], object]:
        """Fresh pages: what other tests left free in the heap would hide an allocation."""
        return lambda: torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8).fill_(1)

    take(300 * MIB)()
    if not can_forget:
        monkeypatch.setattr(memory, "_forget_peak", lambda: False)
    peak = peak_bytes(CPU, take(100 * MIB))
    if can_forget:
        assert 90 * MIB < peak < 140 * MIB
    else:
        assert 0 <= peak < 140 * MIB


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch, **answers: object) -> Iterator[list[str]]:
    calls: list[str] = []

    def answer(name: str) -> Callable[..., object]:
        def call(*_: object) -> object:
            calls.append(name)
            return answers.get(name)

        return call

    for name in (
        *("mem_get_info", "memory_allocated", "memory_reserved", "get_device_properties"),
        *("synchronize", "reset_peak_memory_stats", "max_memory_allocated", "empty_cache"),
    ):
        monkeypatch.setattr(torch.cuda, name, answer(name))
    yield calls


@pytest.mark.parametrize(
    ("free", "allocated", "reserved", "available"),
    [(700, 100, 200, 700), (900, 100, 200, 800), (900, 300, 200, 700)],
    ids=["others use more", "reserved is more", "allocated is more"],
)
def test_in_use_on_a_gpu_is_the_most_that_anyone_knows_of(
    free: int, allocated: int, reserved: int, available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_cuda(
        monkeypatch,
        mem_get_info=(free, 1000),
        memory_allocated=allocated,
        memory_reserved=reserved,
        get_device_properties=SimpleNamespace(is_integrated=0),
    ):
        own = max(allocated, reserved)
        assert measure(CUDA) == DeviceMemory(1000, available, False, False, own)


def test_what_other_engines_use_of_a_gpu_is_not_taken_from_a_share_of_ones_own() -> None:
    """Others use 450 of 1000 bytes: half of the device is there, but not more than is free."""
    gpu = DeviceMemory(1000, 450, is_host=False, is_unified=False, own=100)
    shared = Budget(share=0.5, is_device_shared=True)
    assert step_budget(gpu, shared) == 500 - 100
    assert step_budget(gpu, Budget(share=0.5)) < 0
    assert step_budget(gpu, shared, weight_bytes=50) == 500 - 100 - 50
    assert step_budget(gpu, Budget(share=0.9, is_device_shared=True)) == 450
    assert step_budget(gpu, Budget(num_blocks=9, is_device_shared=True)) == 450


def test_an_integrated_gpu_shares_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(
        monkeypatch,
        mem_get_info=(700, 1000),
        memory_allocated=0,
        memory_reserved=0,
        get_device_properties=SimpleNamespace(is_integrated=1),
    ):
        assert measure(CUDA).is_unified and not measure(CUDA).is_host


def test_a_profile_on_a_gpu_leaves_no_cache_behind_to_be_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_cuda(monkeypatch, memory_allocated=100, max_memory_allocated=170) as calls:
        assert peak_bytes(CUDA, lambda: calls.append("run")) == 70
    assert calls.index("reset_peak_memory_stats") < calls.index("run")
    assert calls.index("max_memory_allocated") < calls.index("empty_cache")
