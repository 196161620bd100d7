"""A pinned prefix as the server keeps it: all that it takes to pin it again in another engine."""

from array import array
from asyncio import TimerHandle
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Finish


class PrefixState(StrEnum):
    """The states of a prefix: its blocks are held; they are being computed, for the first time or
    again; there are none, and `why` says what has become of them."""

    PINNED = "pinned"
    COMPUTING = "computing"
    LOST = "lost"


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned prefix of `num_tokens` tokens. The full blocks of it are held while it is `pinned`:
    `num_pinned_tokens` tokens in `num_blocks` blocks, which other prefixes may hold too. Times are
    seconds since 1970; `expires_at` is null for one that stays. `tenant` is whose it is, where all
    are listed."""

    id: str
    object: str = "prefix"
    created_at: int
    expires_at: int | None
    model: str
    name: str | None
    state: PrefixState
    why: str | None
    num_tokens: int
    num_pinned_tokens: int
    num_blocks: int
    tenant: str | UnsetType = UNSET


class PinOutcome(NamedTuple):
    """The end of a request that was to pin its prompt: PINNED, COMPUTING where it must be computed
    again, or LOST with why; `has_failed` where it would be so again."""

    state: PrefixState
    num_blocks: int = 0
    why: str | None = None
    has_failed: bool = False


def outcome_of(finish: Finish | None) -> PinOutcome:
    """Return what became of a request that was to pin its prompt, None for one without an end."""
    for event in () if finish is None else finish.timeline:
        if event.reason is Reason.PINNED:
            return PinOutcome(PrefixState.PINNED, event.number)
        if event.reason is Reason.PIN_LOST:
            return PinOutcome(PrefixState.COMPUTING)
        if event.reason is Reason.NOT_PINNED:
            why = (
                f"{event.number} KV blocks too many would be pinned: others were pinned while this "
                "prefix was computed"
            )
            return PinOutcome(PrefixState.LOST, why=why)
    reason = Reason.ABORTED if finish is None else finish.reason
    why = f"its computation has ended ({reason})"
    return PinOutcome(PrefixState.LOST, why=why, has_failed=True)


@dataclass(slots=True, eq=False)
class PinnedPrefix:
    """One prefix; it belongs to the tenant of this name. `num_tokens` are all of it,
    `pinned_token_ids` those of its full blocks.

    request: without its prompt, the engine request that pins it; `request_id` is that of the
        newest, under which the engine has it.
    is_new: the client that asks for it has no answer yet.
    """

    id: str
    tenant: str
    model: str
    name: str | None
    created_s: int
    expires_s: int | None
    num_tokens: int
    pinned_token_ids: "array[int]"
    request: NewRequest
    request_id: str
    state: PrefixState = PrefixState.COMPUTING
    num_blocks: int = 0
    why: str | None = None
    has_failed: bool = False
    is_new: bool = True
    num_requests: int = 1
    expiry: TimerHandle | None = field(default=None, repr=False)

    def take(self, outcome: PinOutcome) -> None:
        """Take what became of the newest request."""
        self.state, self.num_blocks, self.why, self.has_failed = outcome

    def next_request(self) -> NewRequest:
        """Return a request that pins the prefix again, under an id of its own."""
        self.request_id = f"{self.id}-{self.num_requests}"
        self.num_requests += 1
        return replace(
            self.request, id=self.request_id, prompt_token_ids=tuple(self.pinned_token_ids)
        )
