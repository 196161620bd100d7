"""The states of one request."""

from dataclasses import dataclass, field
from typing import NamedTuple

from quire.cache.states.state_use import NULL_STATE, StateWrite


class KeptState(NamedTuple):
    """A state that a step reads or writes, held until the result for `end` tokens has come."""

    end: int
    state_id: int


@dataclass(slots=True, eq=False)
class StateTable:
    """The states of one request, which are written by the cache alone.

    `live` is its own, and nobody else finds it. `current` holds the state after the first
    `position` tokens: it is `live`, a snapshot or the null state. The next snapshots are `wanted`
    after so many tokens, in order; beyond the `num_known` tokens of its admission they are those of
    its output. `pending` ones are written by steps whose results have not come. `last_output` is
    the digest under which the newest snapshot of its output is found. `num_saved` are the tokens of
    the last snapshot before the next.
    """

    live: int
    current: int = NULL_STATE
    position: int = 0
    num_known: int = 0
    num_saved: int = 0
    wanted: list[int] = field(default_factory=list)
    pending: list[StateWrite] = field(default_factory=list)
    kept: list[KeptState] = field(default_factory=list)
    last_output: bytes | None = None

    def held(self) -> list[int]:
        """Return the states that it holds, each as often as it does."""
        held = [self.live, *(each.state_id for each in self.kept)]
        if self.current not in (self.live, NULL_STATE):
            held.append(self.current)
        return held
