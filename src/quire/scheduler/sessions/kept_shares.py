"""The blocks that are kept for each tenant: no more than its share of the pool, by weight, among
the tenants who have requests here or something kept."""

from typing import NamedTuple


class KeptName(NamedTuple):
    """One kept prefix: its tenant, the number of its session, its blocks, and where a turn is
    expected its priority."""

    tenant: str
    session: int
    num_blocks: int
    priority: int | None = None


class KeptShares:
    """Accounts of what is kept, by name, from the oldest on. What is kept twice for a session, as
    its client asks for it and the next turn is expected, counts once."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._names: dict[str, KeptName] = {}
        self._num_of: dict[str, int] = {}
        self._of_session: dict[int, dict[str, int]] = {}
        self._num_names: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._live: dict[str, int] = {}

    def open(self, tenant: str, weight: float) -> None:
        """Note a request of a tenant of this weight."""
        self._live[tenant] = self._live.get(tenant, 0) + 1
        self._weights[tenant] = weight

    def close(self, tenant: str) -> None:
        """Note one request of a tenant less."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            self._forget(tenant)

    def room_for(self, tenant: str, weight: float, num_blocks: int) -> list[str] | None:
        """Return the names, the oldest first, that must keep nothing any more so that a tenant of
        this weight may keep so many blocks; None if that is more than its share."""
        share = weight / sum({**self._weights, tenant: weight}.values())
        num_over = self._num_of.get(tenant, 0) + num_blocks - int(share * self._num_blocks)
        names: list[str] = []
        for session in self._sessions_of(tenant):
            if num_over <= 0:
                break
            names += self._of_session[session]
            num_over -= self._num_in(session)
        return None if num_over > 0 else names

    def add(self, name: str, kept: KeptName, weight: float) -> None:
        """Note what a tenant of this weight keeps under a name, in place of what was before."""
        self.remove(name)
        self._weights[kept.tenant] = weight
        num_before = self._num_in(kept.session)
        self._names[name] = kept
        self._of_session.setdefault(kept.session, {})[name] = kept.num_blocks
        num_more = self._num_in(kept.session) - num_before
        self._num_of[kept.tenant] = self._num_of.get(kept.tenant, 0) + num_more
        self._num_names[kept.tenant] = self._num_names.get(kept.tenant, 0) + 1

    def remove(self, name: str) -> None:
        """Note that nothing is kept under a name."""
        kept = self._names.pop(name, None)
        if kept is None:
            return
        num_before, own = self._num_in(kept.session), self._of_session[kept.session]
        del own[name]
        if not own:
            del self._of_session[kept.session]
        self._num_of[kept.tenant] -= num_before - self._num_in(kept.session)
        self._num_names[kept.tenant] -= 1
        self._forget(kept.tenant)

    def is_expected(self, name: str) -> bool:
        """Return whether what is kept under a name is kept for a turn that is expected."""
        return self._names[name].priority is not None

    def num_expected(self, tenant: str) -> int:
        """Return how many blocks are kept for turns of a tenant that are expected."""
        each = self._names.values()
        expected = (kept for kept in each if kept.priority is not None and kept.tenant == tenant)
        return sum(kept.num_blocks for kept in expected)

    def worst_expected(self) -> int | None:
        """Return the worst priority of the turns that are expected, None where none is."""
        found = [kept.priority for kept in self._names.values() if kept.priority is not None]
        return max(found, default=None)

    def _sessions_of(self, tenant: str) -> list[int]:
        """Return the sessions of a tenant, the one that was kept first first."""
        kept = (each for each in self._names.values() if each.tenant == tenant)
        return list(dict.fromkeys(each.session for each in kept))

    def _num_in(self, session: int) -> int:
        """Return how many blocks are kept for a session."""
        return max(self._of_session.get(session, {}).values(), default=0)

    def _forget(self, tenant: str) -> None:
        """Forget a tenant that has neither requests nor anything kept."""
        if not self._num_names.get(tenant) and tenant not in self._live:
            self._num_of.pop(tenant, None)
            self._num_names.pop(tenant, None)
            self._weights.pop(tenant, None)
