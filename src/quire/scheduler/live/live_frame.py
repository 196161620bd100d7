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
    `arrived_s` is in seconds of the engine's clock. Its latency targets are in seconds, None where
    it has none."""

    number: int
    id: str
    tenant: str
    num_prompt_tokens: int
    max_tokens: int
    arrived_s: float
    target_ttft_s: float | None = None
    target_itl_s: float | None = None


class TokenTimes(NamedTuple):
    """The seconds until the first token of a request with latency targets, and between its last
    two, None before these; `num_late` tokens after the first came too late."""

    ttft_s: float | None
    itl_s: float | None
    num_late: int


class LiveProgress(NamedTuple):
    """The progress of a request. `num_computed` counts tokens of prompt and output. `event` is the
    last of its timeline, the reason for which it waits or runs; None where that is as it was.
    `times` are of a request with targets, None of others.
    """

    number: int
    phase: RequestPhase
    num_computed: int
    num_outputs: int
    num_preemptions: int
    event: Event | None
    times: TokenTimes | None = None


class LivePace(NamedTuple):
    """The pace of an engine with latency targets: the newest step might compute
    `num_prompt_tokens` of prompts (None for as many as it has room for, or where there were none),
    since the request `tightest` has a target. `predicted_s` were expected for the last step that
    has ended, None while unknown; such times are wrong by the share `error` in the mean."""

    num_prompt_tokens: int | None
    tightest: str
    predicted_s: float | None
    error: float


class LiveFrame(NamedTuple):
    """The changes since the frame before; the first one `is_whole`.

    `runs` and `sets` describe blocks as in `BlockChanges`, with the numbers of requests as holders.
    `entered` and `left` are requests that enter and leave the view; `progress` lists the requests
    that made progress. `num_unlisted` requests more wait. `pace` is None while no request that is
    listed has a target.
    """

    is_whole: bool
    runs: list[int]
    sets: list[tuple[int, HolderSet]]
    entered: list[LiveRequest]
    left: list[int]
    progress: list[LiveProgress]
    num_unlisted: int
    pace: LivePace | None = None
