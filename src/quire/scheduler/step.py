"""The values between scheduler and runner: numbered, immutable, ids and counts only.

schedule() -> Step -> runner.run() -> StepResult -> update(step, result) -> [Delta]
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.cache.states.state_use import StateUse
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, TokenLogprobs

BlockIds: TypeAlias = tuple[tuple[int, ...], ...]
"""Block ids by layer group."""


class NewRequestData(NamedTuple):
    """A request that was admitted: all the runner must know of it, whether it is new or resumed.

    `token_ids` is the prompt followed by the outputs of before a preemption; `block_ids` are all
    blocks of its table.
    """

    request: NewRequest
    token_ids: tuple[int, ...]
    block_ids: BlockIds


class SeqChunk(NamedTuple):
    """The tokens `start .. start + num_tokens` of one request, computed in one step.

    `new_block_ids` are the blocks that its table got since its last chunk. `samples` is true when
    the chunk reaches the last known token, so that the next one is sampled from its logits; never
    where the request ends with its prompt. `states` are for models with recurrent layers.
    """

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: BlockIds
    samples: bool
    states: StateUse | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one step: the tokens to compute, and the tasks before them.

    The runner forgets the `finished_requests` (ended or preempted), runs the `block_copies` in
    order and adds the `new_requests` (admitted now, for the first time or again). Then it computes
    the `chunks`, `num_tokens` tokens in all.
    """

    number: int
    finished_requests: tuple[str, ...]
    new_requests: tuple[NewRequestData, ...]
    chunks: tuple[SeqChunk, ...]
    num_tokens: int
    block_copies: tuple[BlockCopy, ...] = ()


class StepFailure(StrEnum):
    """The kinds of errors that keep a step from being computed at once."""

    OUT_OF_MEMORY = "out_of_memory"
    ERROR = "error"


class StepLaunch(StrEnum):
    """The ways to launch a step on a device: operation by operation, as captured pieces with
    attention between them, or as one capture (vLLM: CUDAGraphMode)."""

    NONE = "none"
    PIECEWISE = "piecewise"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class StepResult:
    """The samples of a step: one token id for each sampling chunk, in the order of the chunks.

    `forced` are tokens by request id that follow the sampled one whatever the model says of them.
    `prompt_logprobs` of a chunk are those of the prompt tokens `start + 1 ...` that it predicts.
    `vectors` are those of the requests whose pooled prompts are complete, in float32 as it lies in
    memory.
    `not_finite` names requests whose logits held NaN, `grammar_failed` those whose grammar left no
    token, `step_failed` those whose part of the step could not be computed; their token id means
    nothing. `step_failure` says what kept the step from being computed at once, if anything did,
    and `launch` how it was launched, or the last part of it; None where it computed nothing.
    `copy_time` is that of block copies, the step's own or those of steps before it, that were found
    to be done since the last result.
    """

    number: int
    token_ids: tuple[int, ...]
    forced: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    vectors: Mapping[str, bytes] = field(default_factory=dict)
    not_finite: frozenset[str] = frozenset()
    grammar_failed: frozenset[str] = frozenset()
    step_failed: frozenset[str] = frozenset()
    step_failure: StepFailure | None = None
    copy_time: CopyTime = CopyTime()
    launch: StepLaunch | None = None

    def failure(self, request_id: str) -> Reason | None:
        """Return why the request has no token although it should, or None."""
        if request_id in self.step_failed:
            return Reason.STEP_FAILED
        if request_id in self.not_finite:
            return Reason.NOT_FINITE
        return Reason.GRAMMAR_FAILED if request_id in self.grammar_failed else None


class Finish(NamedTuple):
    """The end of a request and its account. Seconds are differences of the engine's monotonic
    clock. Of the tokens after the first, `num_late_tokens` missed the request's target.
    """

    reason: Reason
    number: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    queue_s: float
    prefill_s: float
    decode_s: float
    timeline: tuple[Event, ...]
    num_late_tokens: int = 0


class PrefillProgress(NamedTuple):
    """The computed tokens of a prompt; `num_cached` of them are the prefix hit."""

    num_computed: int
    num_cached: int


class Delta(NamedTuple):
    """The tokens that one step adds to one request's output. `prompt_logprobs` come with each
    computed part of the prompt, and so does `prefill`, if requested. A request that pools its
    prompt ends with a `vector`, the bytes of float32."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    prefill: PrefillProgress | None = None
    vector: bytes = b""


class Refusal(NamedTuple):
    """The reason why a request was not taken: the code, a sentence with the numbers, and the field
    at fault if it is one. Where the queue is full, or the requests ahead take too long, `wait_s` is
    how long to wait before another try, once that is known.
    """

    request_id: str
    reason: Reason
    message: str
    field: str | None = None
    wait_s: float | None = None


class Stats(NamedTuple):
    """The accounts after a step: gauges as they are, counters since start.

    Of the host's blocks, `num_blocks_swapped` belong to preempted requests and `num_blocks_on_host`
    may be found. Of `num_preemptions`, `num_swaps` were by swap, and `num_urgent_preemptions` for
    more urgent requests, `num_urgent_swaps` of them by swap. `num_copied_out`, `num_copied_in`
    and `num_copied_on_device` count block copies. `num_recent_*` are the tokens of prefix queries
    and hits of the newest requests; `num_misses_*` and `num_prefix_waits` count requests. Of
    `num_tokens_without_state` tokens K and V were found, but no snapshot of the states. Of
    `num_generation_tokens`, `num_forced_tokens` were not sampled. `predicted_wait_s` is the
    estimated time until the waiting requests are computed. Of `num_prefix_hits`, `num_host_hits`
    were copied in from the host, `num_disk_hits` were loaded from disk and `num_peer_hits` from
    other engines. `num_steps_out_of_memory` and `num_steps_with_errors` were not computed at once;
    `num_steps_launched` were launched operation by operation, the steps `piecewise` and `full` from
    captures. Of `num_wasted_tokens`, which were computed again, `num_lost_tokens` had been computed
    by engines that ended. Of the host's states, `num_states_swapped` belong to preempted requests
    and `num_states_on_host` may be found; `num_state_copies_*` count copies of states.
    Of `num_blocks_cached`, `num_blocks_kept` are evicted last. `num_turns` requests were the next
    turn of a session, `num_turns_kept` of them in time for what was kept; what was kept for others
    `num_kept_expired`, or was `num_kept_crowded_out` by newer of their tenant. So many requests
    waited rather than take it (`num_held_for_sessions`).
    First tokens of requests with a target came within it (`num_ttft_met`) or not, and so did later
    ones (`num_itl_*`); `num_ttft_foreseen` were expected to be late from the start. `num_let_by`
    requests were next and let a shorter one by. The expected times of recent steps were wrong by
    `step_time_error`, a share, in the mean.
    """

    num_running: int
    num_waiting: int
    num_waiting_for_capacity: int
    num_blocks_free: int
    num_blocks_cached: int
    num_blocks_active: int
    num_blocks_swapped: int
    num_blocks_on_host: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_forked_tokens: int
    num_preemptions: int
    num_swaps: int
    num_copied_out: int
    num_copied_in: int
    num_copied_on_device: int
    num_wasted_tokens: int
    num_prompt_tokens: int
    num_generation_tokens: int
    num_recent_queries: int = 0
    num_recent_hits: int = 0
    num_resets: int = 0
    num_misses_too_short: int = 0
    num_misses_differing: int = 0
    num_misses_evicted: int = 0
    num_misses_by_salt: int = 0
    num_misses_new: int = 0
    num_misses_without_state: int = 0
    num_tokens_without_state: int = 0
    num_prefix_waits: int = 0
    num_forced_tokens: int = 0
    predicted_wait_s: float = 0.0
    num_blocks_pinned: int = 0
    num_host_hits: int = 0
    num_disk_hits: int = 0
    num_peer_hits: int = 0
    num_steps_out_of_memory: int = 0
    num_steps_with_errors: int = 0
    num_lost_tokens: int = 0
    num_steps_launched: int = 0
    num_steps_piecewise: int = 0
    num_steps_full: int = 0
    num_states_free: int = 0
    num_states_cached: int = 0
    num_states_active: int = 0
    num_states_swapped: int = 0
    num_states_on_host: int = 0
    num_state_copies_out: int = 0
    num_state_copies_in: int = 0
    num_ttft_met: int = 0
    num_ttft_missed: int = 0
    num_itl_met: int = 0
    num_itl_missed: int = 0
    num_urgent_preemptions: int = 0
    num_urgent_swaps: int = 0
    num_blocks_kept: int = 0
    num_turns: int = 0
    num_turns_kept: int = 0
    num_kept_expired: int = 0
    num_kept_crowded_out: int = 0
    num_held_for_sessions: int = 0
    step_time_error: float = 0.0
    num_ttft_foreseen: int = 0
    num_let_by: int = 0

    @property
    def states_by_use(self) -> dict[str, int]:
        """The numbers of states of recurrent layers: free ones, snapshots that nobody holds, and
        those that are held; on the host, those of swapped requests and snapshots."""
        return {
            "free": self.num_states_free,
            "cached": self.num_states_cached,
            "active": self.num_states_active,
            "swapped": self.num_states_swapped,
            "host_cached": self.num_states_on_host,
        }

    @property
    def blocks_by_state(self) -> dict[str, int]:
        """The numbers of blocks by state; the last two states are on the host."""
        return {
            "free": self.num_blocks_free,
            "cached": self.num_blocks_cached,
            "active": self.num_blocks_active,
            "pinned": self.num_blocks_pinned,
            "swapped": self.num_blocks_swapped,
            "host_cached": self.num_blocks_on_host,
        }

    @property
    def kv_usage(self) -> float:
        """The share of blocks that requests or pins hold."""
        num_held = self.num_blocks_active + self.num_blocks_pinned
        return num_held / max(num_held + self.num_blocks_free + self.num_blocks_cached, 1)


NO_STATS = Stats(*(0,) * len(Stats._fields))
NO_REPLICAS: Mapping[str, Stats] = MappingProxyType({})
"""The accounts by replica of an engine that is none of several."""
GAUGES = frozenset(
    (
        *("num_running", "num_waiting", "num_waiting_for_capacity", "predicted_wait_s"),
        "step_time_error",
        *("num_blocks_free", "num_blocks_cached", "num_blocks_active", "num_blocks_swapped"),
        *("num_blocks_on_host", "num_blocks_pinned", "num_blocks_kept"),
        *("num_recent_queries", "num_recent_hits"),
        *("num_states_free", "num_states_cached", "num_states_active"),
        *("num_states_swapped", "num_states_on_host"),
    )
)
"""The fields of Stats that are as they are; all others count since an engine's start."""


def together(one: Stats, other: Stats) -> Stats:
    """Return the sum of two engines' statistics; the predicted wait is the longer of both, the
    error of step times the larger."""
    sums = Stats._make(a + b for a, b in zip(one, other, strict=True))
    return sums._replace(
        predicted_wait_s=max(one.predicted_wait_s, other.predicted_wait_s),
        step_time_error=max(one.step_time_error, other.step_time_error),
    )
