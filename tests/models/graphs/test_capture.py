"""Captures that fail leave the process as it was, whatever torch's version cleans up by itself.
Shown on a stand-in whose allocator raises where torch's does."""

import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.graphs.capture import Cut, GraphRecorder, Recording, capture_sizes
from tests.models.graphs.device import Fault, StandInDevice, Torch, ignore_progress
from tests.profiles import cases

SIZES = (1, 2, 4, 8, 16, 24)
OF_MEMORY = {Fault.CHECK_MEMORY, Fault.MEMORY, Fault.GRAPH_MEMORY}
BEFORE_CAPTURES = {Fault.WAIT, Fault.CROSSING, Fault.CHECK_MEMORY}

faults = st.sampled_from(Fault)
versions = st.sampled_from(Torch)


def doubling(
    device: StandInDevice, num_cuts: int = 0
) -> tuple[Tensor, Tensor, Callable[[int, Cut], None]]:
    """Return inputs, outputs, and a step that doubles the first `size` of them. It is cut so many
    times, and what is launched at each cut halves them and doubles them again."""
    inputs, outputs = torch.zeros(max(SIZES)), torch.zeros(max(SIZES))
    kept = torch.zeros(max(SIZES))

    def run(size: int, cut: Cut) -> None:
        device.launch(lambda: None)
        states = inputs[:size] * 2
        for _ in range(num_cuts):
            kept[:size].copy_(states)
            cut(partial(_halve, kept[:size]))
            states = kept[:size] * 2
            device.launch(lambda: None)
        outputs[:size].copy_(states)

    return inputs, outputs, run


def _halve(numbers: Tensor) -> None:
    numbers.mul_(0.5)


def assert_nothing_is_left(device: StandInDevice) -> None:
    assert device.stream == "main" and device.random_state == "free"
    assert not device.refuses and device.tape is None
    assert all(pool.users == 0 and pool.is_dropped for pool in device.pools)
    device.free_cached()


def assert_replays(launches: dict[int, Recording], inputs: Tensor, outputs: Tensor) -> None:
    for size, recording in launches.items():
        inputs.fill_(size)
        outputs.zero_()
        recording.replay()
        assert outputs.tolist() == [2.0 * size] * size + [0.0] * (max(SIZES) - size)


@given(versions, faults, st.integers(0, 2), st.data())
@cases(300)
def test_a_capture_that_fails_leaves_nothing(
    version: Torch, fault: Fault, num_cuts: int, data: st.DataObject
) -> None:
    num_graphs = len(SIZES) if fault in BEFORE_CAPTURES else len(SIZES) * (num_cuts + 1)
    at = data.draw(st.integers(0, num_graphs - 1), label="at")
    device = StandInDevice(version, fault, frozenset({at}))
    inputs, outputs, run = doubling(device, num_cuts)
    try:
        launches = capture_sizes(GraphRecorder(device), SIZES, run, ignore_progress)
    except RuntimeError:
        assert fault not in OF_MEMORY
        assert_nothing_is_left(device)
        assert ("begin" in device.log) is (fault not in BEFORE_CAPTURES)
        assert device.log.count("end") <= device.log.count("begin")
    else:
        assert fault in OF_MEMORY
        num_graphs = sum(each.num_graphs for each in launches.values())
        assert num_graphs == len(launches) * (num_cuts + 1)
        assert len(device.pools) == 1 and device.pools[0].users == num_graphs
        assert_replays(launches, inputs, outputs)
        device.free_cached()
    again = capture_sizes(GraphRecorder(StandInDevice(version)), SIZES, run, ignore_progress)
    assert list(again) == sorted(SIZES, reverse=True)


@given(versions, st.sampled_from(sorted(OF_MEMORY, key=str)), st.sets(st.integers(0, len(SIZES))))
@cases(200)
def test_without_memory_for_all_sizes_some_are_captured(
    version: Torch, fault: Fault, faulty: set[int]
) -> None:
    device = StandInDevice(version, fault, frozenset(faulty))
    inputs, outputs, run = doubling(device)
    launches = capture_sizes(GraphRecorder(device), SIZES, run, ignore_progress)
    if not faulty:
        assert sorted(launches) == list(SIZES)
    if launches:
        largest = max(launches)
        captured = [size for size in SIZES if min(launches) <= size <= largest]
        assert sorted(launches) == captured
        assert device.pools[0].users == len(launches)
    else:
        assert_nothing_is_left(device)
    assert_replays(launches, inputs, outputs)


@pytest.mark.parametrize("version", Torch)
def test_no_memory_at_the_third_size_leaves_the_two_before(version: Torch) -> None:
    device = StandInDevice(version, Fault.MEMORY, frozenset({2}))
    inputs, outputs, run = doubling(device)
    launches = capture_sizes(GraphRecorder(device), SIZES, run, ignore_progress)
    assert list(launches) == [24, 16]
    assert_replays(launches, inputs, outputs)


def test_no_memory_for_the_largest_size_leaves_halves(caplog: pytest.LogCaptureFixture) -> None:
    device = StandInDevice(Torch.NOTHING, Fault.GRAPH_MEMORY, frozenset({0}))
    _, _, run = doubling(device)
    launches = capture_sizes(GraphRecorder(device), SIZES, run, ignore_progress)
    assert list(launches) == [8, 4, 2, 1]
    assert "no memory to capture a step of 24 tokens" in caplog.text


def test_what_waits_is_refused_before_any_capture() -> None:
    device = StandInDevice(Torch.NOTHING, Fault.WAIT, frozenset({len(SIZES) - 1}))
    _, _, run = doubling(device)
    with pytest.raises(RuntimeError, match="synchronizing"):
        capture_sizes(GraphRecorder(device), SIZES, run, ignore_progress)
    assert "begin" not in device.log
    assert_nothing_is_left(device)


def test_the_error_of_the_step_is_told_rather_than_that_of_its_capture() -> None:
    device = StandInDevice(Torch.NOTHING, Fault.UNSEEN_WAIT, frozenset({0}))
    _, _, run = doubling(device)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        capture_sizes(GraphRecorder(device), SIZES, run, ignore_progress)


@pytest.mark.parametrize("fault", [Fault.WAIT, Fault.UNSEEN_WAIT])
def test_tensors_of_a_step_that_failed_are_freed_before_its_memory_is_given_back(
    fault: Fault,
) -> None:
    device = StandInDevice(Torch.NOTHING, fault, frozenset({0}))
    alive: list[weakref.ref[Tensor]] = []
    seen: list[bool] = []

    def run(size: int, cut: Cut) -> None:
        activations = torch.ones(size)
        alive.append(weakref.ref(activations))
        device.launch(lambda: None)

    device.on_free = lambda: seen.append(any(each() is not None for each in alive))
    with pytest.raises(RuntimeError):
        capture_sizes(GraphRecorder(device), SIZES, run, ignore_progress)
    assert seen[-1] is False


def test_progress_counts_checks_and_captures() -> None:
    device = StandInDevice()
    _, _, run = doubling(device)
    told: list[tuple[int, int]] = []
    capture_sizes(GraphRecorder(device), SIZES, run, lambda *count: told.append(count))
    assert told == [(done, 2 * len(SIZES)) for done in range(2 * len(SIZES) + 1)]
