"""Captures on a GPU: what is done there is what the stand-in does elsewhere."""

import gc

import pytest
import torch
from torch import Tensor

from quire.models.graphs.capture import Cut, GraphRecorder
from quire.models.graphs.crossings import HostTransferError
from quire.models.graphs.cuda import CUDADevice

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

NUM_NUMBERS = 64 << 20


@pytest.fixture
def numbers() -> Tensor:
    return torch.ones(NUM_NUMBERS, device="cuda")


def reserved_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_a_graph_is_replayed_over_what_its_tensors_hold(numbers: Tensor) -> None:
    out = torch.zeros_like(numbers)
    recorder = GraphRecorder(CUDADevice(numbers.device))
    recorder.check(lambda: out.copy_(numbers * 2))
    replay = recorder.capture(lambda: out.copy_(numbers * 2))
    numbers.fill_(3)
    replay()
    assert out.min() == out.max() == 6


def test_what_is_between_two_graphs_is_launched_anew(numbers: Tensor) -> None:
    """The first graph's memory is still its own when the second reads it."""
    between, out = torch.zeros_like(numbers), torch.zeros_like(numbers)

    def compute(cut: Cut) -> None:
        kept = numbers + 1
        between.copy_(numbers * 2)
        cut(lambda: launch(between))
        out.copy_(between + kept)

    def launch(x: Tensor) -> None:
        x.mul_(float(x.max()))  # waits for the device, as no capture may

    recorder = GraphRecorder(CUDADevice(numbers.device))
    recorder.check(lambda: compute(lambda between: None))
    recording = recorder.capture_pieces(compute)
    assert recording.num_graphs == 2
    for number in (3.0, 5.0):
        numbers.fill_(number)
        recording.replay()
        assert out.min() == out.max() == (2 * number) ** 2 + number + 1


def test_a_capture_that_fails_after_a_cut_leaves_the_process_as_it_was(numbers: Tensor) -> None:
    before = reserved_bytes()
    recorder = GraphRecorder(CUDADevice(numbers.device))

    def compute(cut: Cut) -> None:
        doubled = numbers * 2
        cut(lambda: None)
        doubled.sum().item()

    with pytest.raises(RuntimeError):
        recorder.capture_pieces(compute)
    recorder.forget()
    assert reserved_bytes() == before
    out = torch.zeros_like(numbers)
    again = GraphRecorder(CUDADevice(numbers.device))
    again.capture(lambda: out.copy_(numbers * 2))()
    assert out.min() == out.max() == 2


def test_graphs_that_are_forgotten_give_their_memory_back(numbers: Tensor) -> None:
    out = torch.zeros_like(numbers)
    before = reserved_bytes()
    recorder = GraphRecorder(CUDADevice(numbers.device))
    recorder.capture(lambda: out.copy_(numbers * 2))
    assert reserved_bytes() >= before + numbers.nbytes
    recorder.forget()
    assert reserved_bytes() == before


def test_a_capture_that_fails_leaves_the_process_as_it_was(numbers: Tensor) -> None:
    before, stream = reserved_bytes(), torch.cuda.current_stream()
    recorder = GraphRecorder(CUDADevice(numbers.device))
    with pytest.raises(RuntimeError):
        recorder.capture(lambda: (numbers * 2).sum().item())
    recorder.forget()
    assert reserved_bytes() == before
    assert torch.cuda.current_stream() == stream
    torch.rand(4, device="cuda")
    out = torch.zeros_like(numbers)
    again = GraphRecorder(CUDADevice(numbers.device))
    again.capture(lambda: out.copy_(numbers * 2))()
    assert out.min() == out.max() == 2


def test_the_check_refuses_what_waits(numbers: Tensor) -> None:
    recorder = GraphRecorder(CUDADevice(numbers.device))
    with pytest.raises(RuntimeError, match="synchronizing"):
        recorder.check(lambda: numbers.sum().item())
    assert torch.cuda.get_sync_debug_mode() == 0


def test_the_check_refuses_copies_that_do_not_wait(numbers: Tensor) -> None:
    recorder = GraphRecorder(CUDADevice(numbers.device))
    with pytest.raises(HostTransferError, match="non_blocking"):
        recorder.check(lambda: torch.ones(4).to("cuda", non_blocking=True))
