"""The events of the live view as they are sent. A picture is whole; changes go on from it.

Blocks are told by codes: `states` of a picture names those below FIRST_SET by their places, and
`sets` says of each other which requests hold such a block, by their numbers `n`.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

Runs: TypeAlias = list[int]
"""Flat triples: the first block, how many there are, their code."""
BlockSets: TypeAlias = list[tuple[int, tuple[int, ...]]]
"""Pairs of a code and the numbers of the requests that hold each block of this code."""


class Why(msgspec.Struct, frozen=True):
    """The last event of a request's timeline: the reason for which it waits or runs, the number
    that explains it, the id of another request that had a part in it, or "", and all of it in a
    sentence, for people."""

    event: str
    number: int
    other: str
    text: str


class RequestEntered(msgspec.Struct, frozen=True):
    """A request that is shown from now on. `prompt` and `max_tokens` are numbers of tokens, times
    are Unix times in seconds. `key` is the name of its key, where those of all are shown. Latency
    targets are in milliseconds, left out where it has none."""

    n: int
    id: str
    arrived: float
    prompt: int
    max_tokens: int
    key: str | UnsetType = UNSET
    target_ttft_ms: float | UnsetType = UNSET
    target_itl_ms: float | UnsetType = UNSET


class RequestTimes(msgspec.Struct, frozen=True, array_like=True):
    """The times of a request with latency targets, as an array: milliseconds to the first token
    and between the last two, null before these, and how many tokens after the first were late."""

    ttft_ms: float | None
    itl_ms: float | None
    late: int


class RequestProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a request, as an array: its number, its phase, how many tokens of prompt and
    output are computed, how many the output has, how often it was preempted, why it waits or runs,
    null where that is as it was, and its times, null where it has no latency targets."""

    n: int
    phase: str
    computed: int
    outputs: int
    preemptions: int
    why: Why | None
    times: RequestTimes | None


class Preemption(msgspec.Struct, frozen=True):
    """A request that gave up its blocks since the event before, at the Unix time `t`."""

    t: float
    n: int
    why: Why


class TargetFigures(msgspec.Struct, frozen=True):
    """The tokens of requests with latency targets since the start, in time and late: first tokens
    (`ttft`), and later ones (`itl`)."""

    ttft_met: int
    ttft_missed: int
    itl_met: int
    itl_missed: int


class PaceFigures(msgspec.Struct, frozen=True):
    """The pace of steps: how many `prompt_tokens` the newest might compute (null for as many as it
    had room for, or none), and the request `other` whose target that was, or "", in `text` for
    people. The last step was expected to take `predicted_ms`, null while that is unknown; such
    times are wrong by the share `error` in the mean."""

    prompt_tokens: int | None
    other: str
    text: str
    predicted_ms: float | None
    error: float


class Figures(msgspec.Struct, frozen=True):
    """Numbers of the whole model, whoever looks. `seconds` have passed since the event before, in
    which `steps` were taken, of `step_ms` in the mean (null without one). `hit_rate` is that of the
    newest requests, null where nothing was looked up. Of those who wait, `unlisted` are not
    shown one by one. `targets` and `pace` are told where latency targets are in use."""

    running: int
    waiting: int
    unlisted: int
    preemptions: int
    seconds: float
    steps: int
    step_ms: float | None
    tokens_per_s: float
    hit_rate: float | None
    blocks: dict[str, int]
    targets: TargetFigures | UnsetType = UNSET
    pace: PaceFigures | UnsetType = UNSET


class LivePicture(msgspec.Struct, frozen=True):
    """All there is at the Unix time `t`. Blocks `0 .. num_blocks` are the device's, of `block_size`
    tokens each; `num_host_blocks` of the host follow. `ages` are flat pairs: how many blocks, and
    for how many seconds they have been as they are, -1 where that is not known."""

    t: float
    model: str
    states: tuple[str, ...]
    num_blocks: int
    num_host_blocks: int
    block_size: int
    runs: Runs
    ages: list[int]
    sets: BlockSets
    requests: list[RequestEntered]
    progress: list[RequestProgress]
    figures: Figures
    type: str = "picture"


class LiveChanges(msgspec.Struct, frozen=True):
    """The changes until the Unix time `t` since the event before. `entered` come first, `left`
    last: a request that has left may be named by `preempted`."""

    t: float
    runs: Runs
    sets: BlockSets
    entered: list[RequestEntered]
    left: list[int]
    progress: list[RequestProgress]
    preempted: list[Preemption]
    figures: Figures
    type: str = "changes"


class LiveEngineState(StrEnum):
    """The states of an engine that a stream tells of; each but `loaded` ends what was shown."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"
    RESTARTING = "restarting"


class LiveEngine(msgspec.Struct, frozen=True):
    """The state of the model's engine, at the beginning of a stream and when it is another. A
    picture follows once it is loaded."""

    t: float
    model: str
    state: LiveEngineState
    type: str = "engine"
