"""Faults planted on purpose, each of which a state machine of the cache must see."""

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_hash import group_key
from quire.cache.block_pool import NULL_BLOCK, AccountsError, BlockPool
from quire.cache.block_table import BlockTable, Swap, tail_first
from quire.cache.config import CacheConfig
from quire.cache.host_pool import HostPool
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import OPEN
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from tests.cache.cache_machine import CacheMachine
from tests.cache.swap_machine import SwapMachine


def forgets_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is lost with the one that was found under its key."""

    def add_duplicate(pool: BlockPool, block_id: int, key: bytes) -> None:
        pass

    monkeypatch.setattr(BlockPool, "add_duplicate", add_duplicate)


def retains_what_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of every full block, whether or not it is found under that key."""

    def swap_out(
        table: BlockTable, pool: BlockPool, host: HostPool, num_computed: int, block_size: int
    ) -> list[BlockCopy] | None:
        num_full = min(table.num_cached_blocks, num_computed // block_size)
        held = [
            (group, index, block_id)
            for group, ids in enumerate(table.block_ids)
            for index, block_id in enumerate(ids[: -(-num_computed // block_size)])
            if block_id != NULL_BLOCK
        ]
        retained = tuple(
            (group, index, group_key(table.chain.digests[index], group))
            for group, index, _ in held
            if index < num_full
        )
        rest = [each for each in held if each[1] >= num_full]
        host_ids = host.retain([key for _, _, key in retained], len(rest))
        if host_ids is None:
            return None
        pairs = list(zip(rest, host_ids, strict=True))
        private = tuple((group, index, host_id) for (group, index, _), host_id in pairs)
        table.swap = Swap(num_computed, table.epoch, retained, private)
        return [BlockCopy(CopyKind.OUT, block_id, host_id) for (_, _, block_id), host_id in pairs]

    monkeypatch.setattr("quire.cache.kv_cache.swap_out", swap_out)


def retains_what_was_lost_with_its_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both faults together, but for what was computed before a reset: that is released for good."""
    forgets_duplicates(monkeypatch)
    retains_what_cannot_be_found(monkeypatch)
    swap_out = KVCache.swap_out

    def swap_out_if_not_reset(cache: KVCache, table: BlockTable, num_computed: int) -> bool:
        return table.epoch == cache._epoch and swap_out(cache, table, num_computed)

    monkeypatch.setattr(KVCache, "swap_out", swap_out_if_not_reset)


def pins_the_first_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that a group with a window needs of a pinned prefix may be evicted."""

    def first_alone(block_ids: tuple[list[int], ...]) -> list[int]:
        return tail_first(block_ids[:1])

    monkeypatch.setattr("quire.cache.pins.tail_first", first_alone)


def of_two_alike_one_is_evicted() -> None:
    """Two requests compute one prompt; one ends, and its blocks are taken for something else."""
    machine = CacheMachine()
    machine.build(CacheConfig(num_blocks=12, block_size=2, enable_kv_cache_events=True))
    machine.admit_twice([0, 1, 0, 1, 0], OPEN)
    machine.events_tell_what_can_be_found()
    machine.release_and_evict(pick=0)
    machine.events_tell_what_can_be_found()
    machine.what_is_held_can_be_found()


def a_request_is_swapped_out_after_a_reset() -> None:
    """What it holds can be found no more, so that all of it is copied."""
    machine = SwapMachine()
    machine.build(CacheConfig(num_blocks=12, block_size=2, num_host_blocks=6), offloads=False)
    machine.admit([0, 1, 0, 1, 0], salt=b"", use_host=True, times=1, steps=True)
    machine.swap_out(pick=0, extra=0, resets=True)
    machine.accounts_balance()


def of_two_alike_one_is_evicted_and_one_swapped_out() -> None:
    """Nothing of the evicted one goes to the host: what the other needs, it must keep itself."""
    machine = SwapMachine()
    machine.build(CacheConfig(num_blocks=12, block_size=2, num_host_blocks=6), offloads=False)
    machine.admit([0, 1, 0, 1, 0], salt=b"", use_host=True, times=2, steps=True)
    machine.release_and_evict(pick=0, most=1)
    machine.accounts_balance()
    machine.swap_out(pick=0, extra=0, resets=False)
    machine.accounts_balance()


def a_pinned_prompt_ends_and_all_is_taken() -> None:
    """Only what is pinned is left of it."""
    machine = CacheMachine()
    window = AttentionPattern(AttentionType.SLIDING, 3)
    machine.build(CacheConfig(21, 2, groups=(FULL, window), enable_kv_cache_events=True))
    machine.admit_twice([0, 1, 0, 1, 0], OPEN)
    machine.pin(pick=0, share=0.9, name="a", max_blocks=4)
    machine.accounts_balance()
    machine.release(pick=0)
    machine.release_and_evict(pick=0)
    machine.accounts_balance()
    machine.what_is_pinned_is_found()


@pytest.mark.parametrize(
    ("play", "plant"),
    [
        (a_pinned_prompt_ends_and_all_is_taken, pins_the_first_group_alone),
        (of_two_alike_one_is_evicted, forgets_duplicates),
        (a_request_is_swapped_out_after_a_reset, retains_what_cannot_be_found),
        (
            of_two_alike_one_is_evicted_and_one_swapped_out,
            retains_what_was_lost_with_its_duplicate,
        ),
    ],
)
def test_planted_fault_is_seen_by_its_example(
    play: Callable[[], None],
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rules of the machine in one order, so that no luck of a search is needed."""
    play()
    plant(monkeypatch)
    with pytest.raises((AssertionError, AccountsError)):
        play()


@pytest.mark.parametrize(
    ("machine", "plant"),
    [
        (CacheMachine, forgets_duplicates),
        pytest.param(CacheMachine, pins_the_first_group_alone, marks=pytest.mark.long),
        (SwapMachine, retains_what_cannot_be_found),
    ],
)
def test_planted_fault_is_found_by_search(
    machine: type[RuleBasedStateMachine],
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    search = settings(max_examples=4000, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises((AssertionError, AccountsError)):
        run_state_machine_as_test(machine, settings=search)
