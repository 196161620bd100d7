"""A session: the turns of one conversation, each of which begins with what the one before ended
with.

A turn is known as the next of a session by the blocks of its prompt: the last full block of the
prompt before, or of prompt and output, is in it, and it is longer. Where its client gives a name,
half of the prompt before is enough, as some clients cut or summarise what is long ago.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

SessionId: TypeAlias = tuple[str, bytes | str]
"""The tenant, and the digest of a block or the name that the client gives."""


class BlockMark(NamedTuple):
    """A block by which a later prompt is known: its place in the chain and its digest."""

    block: int
    digest: bytes

    def is_in(self, digests: Sequence[bytes]) -> bool:
        """Return whether a chain of digests has the block."""
        return self.block < len(digests) and digests[self.block] == self.digest


@dataclass(slots=True, eq=False)
class KnownSession:
    """A session between two turns, or in one: then `ended_s` is None.

    number: counts sessions; its kept prefixes have it in their names.
    tails: the last full blocks of the last turn, by which the next is known.
    middle: the block in the middle of the last prompt.
    num_prompt: the tokens of the last prompt.
    num_first: the full blocks of the first prompt, which other sessions may begin with too.
    turn_id: the id of the last turn's request.
    calls_tools: whether any turn has called tools.
    gap: the number of the gap that has begun among those of its kind, None where none has.
    endpoint: the API that the last turn came by.
    weight: that of the tenant, as the last turn had it.
    """

    number: int
    tenant: str
    name: str
    started_s: float
    num_first: int
    num_turns: int = 0
    num_prompt: int = 0
    ended_s: float | None = None
    tails: tuple[BlockMark, ...] = ()
    middle: BlockMark | None = None
    turn_id: str = ""
    endpoint: str = ""
    weight: float = 1.0
    calls_tools: bool = False
    gap: int | None = None
    gap_calls_tools: bool = False
    own_gaps: list[float] = field(default_factory=list)

    def num_known(self, digests: Sequence[bytes]) -> int:
        """Return how many of the first blocks of a prompt were those of the last turn."""
        marks = (*self.tails, *(() if self.middle is None else (self.middle,)))
        return max((each.block + 1 for each in marks if each.is_in(digests)), default=0)

    @property
    def ids(self) -> list[SessionId]:
        """The ids under which it is looked for between two turns."""
        found: list[SessionId] = [(self.tenant, each.digest) for each in self.tails]
        if self.name:
            found.append((self.tenant, self.name))
        return found


class SessionTable:
    """The sessions between two turns, by their ids; those that ended long ago are forgotten. Of
    several under one id the one that ended last is found."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._found: dict[SessionId, dict[int, KnownSession]] = {}
        self._idle: dict[int, KnownSession] = {}

    def find(
        self, tenant: str, name: str, digests: Sequence[bytes], num_prompt: int
    ) -> KnownSession | None:
        """Return the session whose next turn has a prompt of so many tokens and these full blocks,
        None if none has."""
        if not self._found:
            return None
        for index in range(len(digests) - 1, -1, -1):
            mark = BlockMark(index, digests[index])
            for each in self._under((tenant, mark.digest)):
                if mark in each.tails and num_prompt > each.num_prompt:
                    return each
        for each in self._under((tenant, name)) if name else ():
            if each.middle is not None and each.middle.is_in(digests):
                return each
        return None

    def add(self, session: KnownSession) -> KnownSession | None:
        """Let a session be found, and return the one that is forgotten for it, if any is."""
        for each in session.ids:
            self._found.setdefault(each, {})[session.number] = session
        self._idle[session.number] = session
        if len(self._idle) <= self._max_sessions:
            return None
        oldest = self._idle[next(iter(self._idle))]
        self.remove(oldest)
        return oldest

    def remove(self, session: KnownSession) -> None:
        """Let a session be found no more."""
        self._idle.pop(session.number, None)
        for each in session.ids:
            under = self._found.get(each, {})
            under.pop(session.number, None)
            if not under:
                self._found.pop(each, None)

    def _under(self, session_id: SessionId) -> Iterator[KnownSession]:
        return reversed(list(self._found.get(session_id, {}).values()))
