"""Decides the number of states of recurrent layers, and where snapshots of them are taken. This is
arithmetic only."""

from dataclasses import replace
from typing import NamedTuple

from quire.cache.sizing import MIB, TooLittleMemory
from quire.cache.states.policy import SnapshotPolicy
from quire.engine.config import EngineConfig
from quire.models.optimizations import Optimization

LEAST_STATES = 2
"""The null state, and that of one request."""
PER_REQUEST = 2
"""A running request has its own state and the snapshot of its output."""
SNAPSHOT_SHARE = 10
"""Snapshots of others take one part in so many of what steps leave."""
MOST_SHARE = 2
"""All states take one part in so many at most, unless more are asked for."""
OPTION = "--num-recurrent-states"


def snapshot_policy(config: EngineConfig) -> SnapshotPolicy:
    """Return where snapshots are taken: at all planned places, but for those that are disabled."""
    disabled, interval = config.model.disable_optimizations, config.memory.state_snapshot_interval
    policy = SnapshotPolicy(interval=interval)
    if Optimization.PLANNED_SNAPSHOTS in disabled:
        policy = replace(policy, junctions=False, ladder=0)
    if Optimization.LAST_SNAPSHOTS in disabled:
        policy = replace(policy, prompt_ends=False, outputs=False)
    return policy


class StateDemand(NamedTuple):
    """The states that an engine wants: `given` if it is told, else enough for `max_num_seqs`
    requests, of `state_bytes` each. Without prefix caching there are no snapshots."""

    state_bytes: int
    max_num_seqs: int
    given: int | None
    keeps_prefixes: bool

    def num_states(self, available: int) -> int:
        """Return the number of states, the null state included, where `available` bytes are left
        for states and KV; 0 for a model without recurrent layers. Raises TooLittleMemory."""
        if not self.state_bytes:
            return 0
        if self.given is not None:
            if self.given * self.state_bytes > available:
                raise TooLittleMemory(
                    f"{self.given} states of recurrent layers take "
                    f"{self.given * self.state_bytes / MIB:.1f} MiB, but "
                    f"{max(available, 0) / MIB:.1f} MiB are available: pass a smaller {OPTION}"
                )
            return self.given
        wanted = 1 + self.max_num_seqs
        if self.keeps_prefixes:
            wanted = 1 + PER_REQUEST * self.max_num_seqs
            wanted += max(available, 0) // SNAPSHOT_SHARE // self.state_bytes
        most = max(available, 0) // MOST_SHARE // self.state_bytes
        return max(min(wanted, most), LEAST_STATES)
