"""Prompts that are pinned when they are computed: within which bound, and what a timeline says."""

from dataclasses import replace

import pytest

from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.pinning import max_pinned_blocks
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.scheduler.driver import BLOCK_SIZE, CONFIG, Driver, request

LONGEST = CONFIG.max_model_len // BLOCK_SIZE
"""The blocks of the longest request."""


def pinning(name: str, num_blocks: int) -> NewRequest:
    """Its prompt is like no other's."""
    prompt = request(name, num_blocks * BLOCK_SIZE).prompt_token_ids
    return NewRequest(name, prompt, Sampling(), Stopping(0), pins_prompt=True)


def driver(num_pinned: int = 8) -> Driver:
    return Driver(num_blocks=1 + LONGEST + num_pinned, caches_prefixes=True)


def pin(driver: Driver, name: str, num_blocks: int) -> list[tuple[Reason, int]]:
    """What the timeline says of the pin."""
    assert driver.add(pinning(name, num_blocks)) is None
    driver.run()
    timeline = driver.finishes[name].timeline
    return [(event.reason, event.number) for event in timeline[-2:]]


def test_a_prompt_is_pinned_once_it_is_computed() -> None:
    driven = driver()
    made = pin(driven, "a", 8)
    assert made[0] == (Reason.PINNED, 8) and made[1][0] is Reason.PROMPT_COMPUTED
    assert driven.scheduler.stats.num_blocks_pinned == 8
    assert driven.scheduler.stats.blocks_by_state["pinned"] == 8
    driven.scheduler.unpin("a")
    assert driven.scheduler.stats.num_blocks_pinned == 0


def test_pinned_blocks_are_in_use() -> None:
    driven = driver()
    pin(driven, "a", 8)
    assert driven.scheduler.stats.kv_usage == 8 / driven.cache.num_usable_blocks


def test_what_would_be_too_much_is_refused_with_the_numbers() -> None:
    driven = driver()
    pin(driven, "a", 5)
    refusal = driven.add(pinning("b", 4))
    assert refusal is not None and refusal.reason is Reason.PINS_FULL
    assert (
        "4 KV blocks more would be pinned beside 5, and pins may hold 8 of the 40: 0.5 of them "
        "(--max-pinned-share), and never those that a request of 64 tokens needs, 32"
    ) == refusal.message
    pin(driven, "c", 3)
    driven.scheduler.unpin("a")
    assert pin(driven, "b", 4)[0] == (Reason.PINNED, 4)


def test_of_two_at_once_the_later_is_not_pinned() -> None:
    driven = driver()
    assert driven.add(pinning("a", 5)) is None
    assert pin(driven, "b", 5)[0] == (Reason.NOT_PINNED, 2)
    assert driven.scheduler.stats.num_blocks_pinned == 5


def test_blocks_that_are_pinned_already_count_once() -> None:
    driven = driver()
    pin(driven, "a", 8)
    again = replace(pinning("a", 8), id="again")
    assert driven.add(again) is None
    driven.run()
    assert driven.scheduler.stats.num_blocks_pinned == 8


def test_a_reset_meanwhile_leaves_nothing_to_pin() -> None:
    driven = driver()
    assert driven.add(pinning("a", 8)) is None
    driven.step()
    driven.scheduler.reset_prefix_cache()
    driven.run()
    assert [event.reason for event in driven.finishes["a"].timeline][-2] is Reason.PIN_LOST
    assert driven.scheduler.stats.num_blocks_pinned == 0


def test_an_aborted_request_pins_nothing() -> None:
    driven = driver()
    assert driven.add(pinning("a", 8)) is None
    driven.step()
    driven.scheduler.abort("a", driven.now)
    assert driven.scheduler.stats.num_blocks_pinned == 0


@pytest.mark.parametrize(
    ("share", "num_usable", "most"), [(0.5, 80, 40), (0.5, 40, 8), (0.0, 80, 0), (1.0, 20, 0)]
)
def test_the_longest_request_always_has_room(share: float, num_usable: int, most: int) -> None:
    config: SchedulerConfig = replace(CONFIG, max_pinned_share=share)
    cache: KVCache = Driver(config, 1 + num_usable, caches_prefixes=True).cache
    assert max_pinned_blocks(config, cache) == most


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_out_of_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="--max-pinned-share"):
        replace(CONFIG, max_pinned_share=share)
