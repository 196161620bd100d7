"""The meaning of each reason in a timeline: its number, and the part of the time that it begins."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from quire.scheduler.reasons import Reason


class TimelinePart(StrEnum):
    """The parts of a request's time. Received: the request is read, checked and tokenised.
    Delivered: it has ended in the engine and is on its way to the client."""

    RECEIVED = "received"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    DELIVERED = "delivered"


class Meaning(NamedTuple):
    """`number` names what the reason's number counts, None where it is not shown; `begins` is the
    part that the reason begins."""

    number: str | None = None
    begins: TimelinePart | None = None


_ENDED = Meaning(None, TimelinePart.DELIVERED)

MEANINGS: Mapping[Reason, Meaning] = {
    Reason.QUEUED: Meaning("requests_ahead", TimelinePart.QUEUED),
    Reason.LATE_EXPECTED: Meaning("ms_late"),
    Reason.COUNTS_LATER: Meaning("ms_later"),
    Reason.LET_BY: Meaning("ms_shorter"),
    Reason.ROUTED: Meaning(),
    Reason.NEXT_TURN: Meaning("ms_since_last"),
    Reason.WAITS_FOR_BLOCKS: Meaning("blocks_short"),
    Reason.WAITS_FOR_STATE: Meaning("states_short"),
    Reason.WAITS_FOR_SESSIONS: Meaning("blocks_short"),
    Reason.WAITS_FOR_SEQUENCE: Meaning("requests_running"),
    Reason.WAITS_FOR_BUDGET: Meaning("token_budget"),
    Reason.WAITS_FOR_PACE: Meaning("prompt_tokens"),
    Reason.WAITS_AFTER_PREEMPTION: Meaning("requests_preempted"),
    Reason.WAITS_FOR_PROMPT: Meaning(),
    Reason.WAITS_FOR_PREFIX: Meaning("tokens_awaited"),
    Reason.WAITS_FOR_GRAMMAR: Meaning(),
    Reason.WAITS_FOR_DISK: Meaning(),
    Reason.LOADED_FROM_DISK: Meaning("tokens_loaded"),
    Reason.WAITS_FOR_PEER: Meaning(),
    Reason.LOADED_FROM_PEER: Meaning("tokens_loaded"),
    Reason.WAITS_FOR_SKIPPED: Meaning("times_passed"),
    Reason.LATE: Meaning("ms_late"),
    Reason.ADMITTED: Meaning("tokens_reused", TimelinePart.PREFILL),
    Reason.RESUMED: Meaning("tokens_reused", TimelinePart.PREFILL),
    Reason.FORKED: Meaning("tokens_shared", TimelinePart.PREFILL),
    Reason.SWAPPED_IN: Meaning("tokens_kept", TimelinePart.PREFILL),
    Reason.PACED: Meaning("prompt_tokens"),
    Reason.FIRST_TOKEN: Meaning(None, TimelinePart.DECODE),
    Reason.MISS_TOO_SHORT: Meaning("tokens"),
    Reason.MISS_DIFFERS: Meaning("first_token"),
    Reason.MISS_EVICTED: Meaning("first_token"),
    Reason.MISS_SALT: Meaning("first_token"),
    Reason.MISS_STATE: Meaning("tokens_of_kv"),
    Reason.MISS_NEW: Meaning(),  # from where is said by the tokens reused
    Reason.PINNED: Meaning("blocks"),
    Reason.NOT_PINNED: Meaning("blocks_too_many"),
    Reason.PIN_LOST: Meaning(),
    Reason.PREEMPTED_FOR_BLOCKS: Meaning("tokens_thrown", TimelinePart.PREEMPTED),
    Reason.PREEMPTED_FOR_URGENT: Meaning("tokens_thrown", TimelinePart.PREEMPTED),
    Reason.SWAPPED_OUT: Meaning("tokens_kept", TimelinePart.PREEMPTED),
    Reason.ENGINE_RESTARTED: Meaning("outputs_kept", TimelinePart.PREEMPTED),
    Reason.STOP_TOKEN: Meaning("token_id", TimelinePart.DELIVERED),
    Reason.END_OF_SEQUENCE: Meaning("token_id", TimelinePart.DELIVERED),
    Reason.MAX_TOKENS: _ENDED,
    Reason.PROMPT_COMPUTED: _ENDED,
    Reason.CONTEXT_END: _ENDED,
    Reason.ABORTED: _ENDED,
    Reason.NOT_FINITE: _ENDED,
    Reason.STEP_FAILED: _ENDED,
    Reason.GRAMMAR_FAILED: _ENDED,
    Reason.QUARANTINED: _ENDED,
    Reason.DEADLINE_EXCEEDED: _ENDED,
    Reason.DEADLINE_HOPELESS: _ENDED,
    Reason.FORK_DIFFERS: _ENDED,
    Reason.PROMPT_EMPTY: _ENDED,
    Reason.CONTEXT_EXCEEDED: _ENDED,
    Reason.NEVER_FITS: _ENDED,
    Reason.PINS_FULL: _ENDED,
    Reason.QUEUE_FULL: _ENDED,
    Reason.OVER_SHARE: _ENDED,
    Reason.DUPLICATE_ID: _ENDED,
}
