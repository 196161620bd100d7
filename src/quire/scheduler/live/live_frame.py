"""The values of the live view: the state of an engine and its changes."""

from enum import IntEnum
from typing import NamedTuple

from quire.cache.live.block_watch import HolderSet
from quire.scheduler.request import Event


class RequestPhase(IntEnum):
    """The phases of a request. A `PREEMPTED` or `SWAPPED` request waits again."""

    QUEUED = 0
    PREFILL = 1
    DECODE = 2
    PREEMPTED = 3
    SWAPPED = 4


class LiveRequest(NamedTuple):
    """A request that enters the live view under a new number; `max_tokens` limits its output,
    `arrived_s` is in seconds of the engine's clock."""

    number: int
    id: str
    tenant: str
    num_prompt_tokens: int
    max_tokens: int
    arrived_s: float


class LiveProgress(NamedTuple):
    """The progress of a request. `num_computed` counts tokens of prompt and output. `event` is the
    last of its timeline, the reason for which it waits or runs; None where that is as it was.
    """

    number: int
    phase: RequestPhase
    num_computed: int
    num_outputs: int
    num_preemptions: int
    event: Event | None


class LiveFrame(NamedTuple):
    """The changes since the frame before; the first one `is_whole`.

    `runs` and `sets` describe blocks as in `BlockChanges`, with the numbers of requests as holders.
    `entered` and `left` are requests that enter and leave the view; `progress` lists the requests
    that made progress. `num_unlisted` requests more wait.
    """

    is_whole: bool
    runs: list[int]
    sets: list[tuple[int, HolderSet]]
    entered: list[LiveRequest]
    left: list[int]
    progress: list[LiveProgress]
    num_unlisted: int
