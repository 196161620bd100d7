"""What the number beside each reason means, and which part of a request's time begins with it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from quire.scheduler.reasons import Reason


class Part(StrEnum):
    """Where a request's time goes. Received: read, checked and made tokens. Delivered: ended in the
    engine, on its way to the client."""

    RECEIVED = "received"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    DELIVERED = "delivered"


class Word(NamedTuple):
    """`number` None: it has no meaning of its own and is not told."""

    number: str | None = None
    begins: Part | None = None


_ENDED = Word(None, Part.DELIVERED)

WORDS: Mapping[Reason, Word] = {
    Reason.QUEUED: Word("requests_ahead", Part.QUEUED),
    Reason.WAITS_FOR_BLOCKS: Word("blocks_short"),
    Reason.WAITS_FOR_SEQUENCE: Word("requests_running"),
    Reason.WAITS_FOR_BUDGET: Word("token_budget"),
    Reason.WAITS_AFTER_PREEMPTION: Word("requests_preempted"),
    Reason.WAITS_FOR_PROMPT: Word(),
    Reason.WAITS_FOR_PREFIX: Word("tokens_awaited"),
    Reason.WAITS_FOR_SKIPPED: Word("times_passed"),
    Reason.ADMITTED: Word("tokens_reused", Part.PREFILL),
    Reason.RESUMED: Word("tokens_reused", Part.PREFILL),
    Reason.FORKED: Word("tokens_shared", Part.PREFILL),
    Reason.SWAPPED_IN: Word("tokens_kept", Part.PREFILL),
    Reason.FIRST_TOKEN: Word(None, Part.DECODE),
    Reason.MISS_TOO_SHORT: Word("tokens"),
    Reason.MISS_DIFFERS: Word("first_token"),
    Reason.MISS_EVICTED: Word("first_token"),
    Reason.MISS_SALT: Word("first_token"),
    Reason.MISS_NEW: Word(),  # from where is said by the tokens reused
    Reason.PREEMPTED_FOR_BLOCKS: Word("tokens_thrown", Part.PREEMPTED),
    Reason.SWAPPED_OUT: Word("tokens_kept", Part.PREEMPTED),
    Reason.STOP_TOKEN: Word("token_id", Part.DELIVERED),
    Reason.END_OF_SEQUENCE: Word("token_id", Part.DELIVERED),
    Reason.MAX_TOKENS: _ENDED,
    Reason.CONTEXT_END: _ENDED,
    Reason.ABORTED: _ENDED,
    Reason.NOT_FINITE: _ENDED,
    Reason.DEADLINE_EXCEEDED: _ENDED,
    Reason.DEADLINE_HOPELESS: _ENDED,
    Reason.FORK_DIFFERS: _ENDED,
    Reason.PROMPT_EMPTY: _ENDED,
    Reason.CONTEXT_EXCEEDED: _ENDED,
    Reason.NEVER_FITS: _ENDED,
    Reason.QUEUE_FULL: _ENDED,
    Reason.OVER_SHARE: _ENDED,
    Reason.DUPLICATE_ID: _ENDED,
}
