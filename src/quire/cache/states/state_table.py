"""The states of one request."""

from dataclasses import dataclass, field
from typing import NamedTuple

from quire.cache.states.policy import SnapshotPlace
from quire.cache.states.state_use import NULL_STATE


class KeptState(NamedTuple):
    """A state that a step reads or writes, held until the result for `end` tokens has come."""

    end: int
    state_id: int


class PendingState(NamedTuple):
    """A state after the first `end` tokens that a step writes, and the kind of its snapshot."""

    end: int
    state_id: int
    kind: int


@dataclass(slots=True, eq=False)
class StateTable:
    """The states of one request, which are written by the cache alone.

    `live` is its own, and nobody else finds it. `current` holds the state after the first
    `position` tokens: it is `live`, a snapshot or the null state. The next snapshots are `wanted`
    at these places, in order; beyond the `num_known` tokens of its admission they are those of its
    output. `pending` ones are written by steps whose results have not come; their state is the null
    state where there was none for a snapshot. `last_output` is the digest under which the newest
    snapshot of its output is found; the last place for one is after `num_output_blocks`.
    `num_saved` are the tokens before the last snapshot that was found or planned. K and V of
    `num_kv_found` tokens were found at its admission, which is asked for right after it alone.
    """

    live: int
    current: int = NULL_STATE
    position: int = 0
    num_known: int = 0
    num_saved: int = 0
    wanted: list[SnapshotPlace] = field(default_factory=list)
    pending: list[PendingState] = field(default_factory=list)
    kept: list[KeptState] = field(default_factory=list)
    last_output: bytes | None = None
    num_output_blocks: int = 0
    num_kv_found: int = 0

    def held(self) -> list[int]:
        """Return the states that it holds, each as often as it does."""
        held = [self.live, *(each.state_id for each in self.kept)]
        if self.current not in (self.live, NULL_STATE):
            held.append(self.current)
        return held
