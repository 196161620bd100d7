"""The host keeps every promise made to swapped requests, and evicts the oldest of the rest."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from quire.cache.block_pool import AccountsError
from quire.cache.chain import Content
from quire.cache.host_pool import HostPool
from quire.cache.sharing import NO_KEYS

KEYS = st.sampled_from([bytes([letter]) for letter in b"abcdefghij"])


@dataclass(eq=False)
class Retained:
    """Of one swapped request."""

    keys: tuple[bytes, ...]
    private: tuple[int, ...]


class HostMachine(RuleBasedStateMachine):
    """`here`: the keys found, in the order of their last use."""

    retained_keys = Bundle("retained_keys")

    def __init__(self) -> None:
        super().__init__()
        self.pool = HostPool(5)
        self.here: list[bytes] = []
        self.live: list[Retained] = []

    @property
    def retained(self) -> set[bytes]:
        return {key for retain in self.live for key in retain.keys}

    @rule(key=KEYS)
    def put(self, key: bytes) -> None:
        known = key in self.here
        block_id = self.pool.put(key, Content(key, b"", NO_KEYS, None))
        if known:
            assert block_id is None
        if key in self.retained:
            assert known or block_id is not None, "what is retained is promised"
        if block_id is not None:
            self.here.append(key)
        elif known and key not in self.retained:
            self.here.append(self.here.pop(self.here.index(key)))
        self.forget_evicted()

    @rule(target=retained_keys, keys=st.sets(KEYS, max_size=3), num_private=st.integers(0, 2))
    def retain(self, keys: set[bytes], num_private: int) -> object:
        num_private_now = sum(len(retain.private) for retain in self.live)
        fits = len(self.retained | keys) + num_private_now + num_private <= 5
        private = self.pool.retain(sorted(keys), num_private)
        assert (private is not None) == fits
        if private is None:
            return None
        assert len(set(private)) == num_private
        entry = Retained(tuple(sorted(keys)), tuple(private))
        self.live.append(entry)
        self.forget_evicted()
        return entry

    @rule(entry=consumes(retained_keys))
    def release(self, entry: Retained | None) -> None:
        if entry is None:
            return
        self.live.remove(entry)
        self.pool.release(entry.keys, entry.private)
        for key in entry.keys:
            if key not in self.retained and key in self.here:
                self.here.append(self.here.pop(self.here.index(key)))

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        self.here.clear()
        for retain in self.live:
            retain.keys = ()

    def forget_evicted(self) -> None:
        """What is gone was not retained, and older than all that stayed and was not either."""
        gone = [key for key in self.here if self.pool.find(key) is None]
        assert not set(gone) & self.retained
        unclaimed = [key for key in self.here if key not in self.retained]
        assert gone == unclaimed[: len(gone)]
        self.here = [key for key in self.here if key not in gone]

    @invariant()
    def balances(self) -> None:
        self.pool.check()
        private = [block_id for retain in self.live for block_id in retain.private]
        assert set(self.pool.retained_keys) == self.retained
        found = [self.pool.find(key) for key in self.here]
        assert len({*private, *found}) == len(private) + len(found)
        num_swapped = len(private) + len(self.retained & set(self.here))
        assert self.pool.usage.swapped == num_swapped
        assert self.pool.usage.cached == len(self.here) - len(self.retained & set(self.here))


TestHostMachine = HostMachine.TestCase


def test_what_is_not_held_cannot_be_given_back() -> None:
    pool = HostPool(2)
    with pytest.raises(AccountsError, match="nobody holds"):
        pool.release([], [0])
    with pytest.raises(AccountsError, match="nobody retains"):
        pool.release([b"a"], [])
