"""What is restored of a scheduler that is short of blocks decides as that one did."""

from collections import Counter

import pytest

from tests.engine.recording.pressed import STATES, replay_pressed, snapshot_pressed

NUM_STEPS = 480


@pytest.mark.parametrize("seed", range(12))
def test_a_record_of_a_pressed_scheduler_is_replayed(seed: int) -> None:
    assert replay_pressed(seed, NUM_STEPS)["forgotten"]


def test_a_pressed_scheduler_that_is_restored_has_the_same_snapshot() -> None:
    """The snapshots have everything that a restore could lose."""
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += snapshot_pressed(seed, 60)
    assert all(seen[state] >= 5 for state in STATES), seen
