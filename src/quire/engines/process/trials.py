"""Finds the request that crashes engines: those that ran in two crashes are suspects, and go on in
groups, one in the engine at a time and nobody else, halved where they crash again.

       ran in two crashes          crash            crash, alone
    ───────────────────────► halves ─────► halves ... ─────────► convicted
                               │ pass the point of the crash
                               ▼
                             cleared

One request among n suspects takes 2 + log2(n) crashes, rounded up. A crash that nobody brought
about convicts nobody who was not alone in it. This is a pure state machine of ids.
"""

from collections.abc import Collection, Iterable, Sequence

CRASHES_OF_A_SUSPECT = 2


class Trials:
    """Counts the crashes of each request, and says who may run."""

    def __init__(self) -> None:
        self._num_crashes: dict[str, int] = {}
        self._groups: list[tuple[str, ...]] = []

    @property
    def group(self) -> tuple[str, ...] | None:
        """The suspects that run now, and nobody else; None where all may run."""
        return self._groups[0] if self._groups else None

    @property
    def num_suspects(self) -> int:
        """The number of suspects that are not cleared yet."""
        return sum(map(len, self._groups))

    def on_passed(self, request_ids: Iterable[str]) -> None:
        """Take requests that have passed the point where they were at their last crash: that was
        not their doing, and a crash to come counts as their first."""
        for request_id in request_ids:
            self._num_crashes.pop(request_id, None)

    def on_crash(self, ran: Sequence[str], live: Collection[str]) -> str | None:
        """Take the requests that ran in a crash, of which those in `live` have not ended; return
        the one that is convicted, if one is. All others may go on then."""
        self._num_crashes = {id: num for id, num in self._num_crashes.items() if id in live}
        tried = self.group
        present = [id for id in ran if id in live and (tried is None or id in tried)]
        for id in present:
            self._num_crashes[id] = self._num_crashes.get(id, 0) + 1
        suspects = [id for id in present if self._num_crashes[id] >= CRASHES_OF_A_SUSPECT]
        if suspects and len(present) == 1:
            self._groups.clear()
            self._num_crashes.pop(suspects[0])
            return suspects[0]
        if suspects:
            middle = -(-len(suspects) // 2)
            halves = tuple(suspects[:middle]), tuple(suspects[middle:])
            self._groups = [half for half in halves if half]
        return None

    def pass_group(self) -> None:
        """Clear the group that runs: each of it has passed the point of its crash, or has ended."""
        for id in self._groups.pop(0):
            self._num_crashes.pop(id, None)
