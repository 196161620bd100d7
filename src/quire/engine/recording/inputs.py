"""All recorded inputs of the scheduler, each with its answer. `apply` gives one to a replayed
scheduler, and says how its answer differs.

A new input is one more class here and one more method of `RecordedScheduler`.
"""

from typing import TypeAlias
from zlib import crc32

import msgspec

from quire.cache.block_copies import CopyTime
from quire.cache.block_hash import group_key
from quire.cache.block_pool import BlockUsage
from quire.cache.snapshot.cache_snapshot import restored_chain
from quire.cache.transfers import BlockPosition, IncomingBlock
from quire.engine.recording.replayed_scheduler import ReplayedScheduler, SegmentStart
from quire.scheduler.reasons import LoadSource, Reason
from quire.scheduler.request import Event, ResumedOutput, TokenLogprobs
from quire.scheduler.snapshot.arrival import (
    END_TOKEN,
    PLAIN_TOKEN,
    STOP_TOKEN,
    ArrivalSnapshot,
    request_of,
    tenant_of,
)
from quire.scheduler.step import Delta, Step, StepResult

WHOLE_EVERY = 17
"""Prime to the sizes of blocks, so that in the course of a block each request is met as it gets
one."""
SAME = ""
"""The answer of `apply` if the scheduler answered as recorded."""
_SCORE = TokenLogprobs(PLAIN_TOKEN, 0.0, ())
_ENCODER = msgspec.msgpack.Encoder()


class RequestAdded(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """A submitted request, and the reason of its refusal, if it was refused."""

    arrival: ArrivalSnapshot
    now: float
    is_ready: bool
    refusal: Reason | None
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        new = request_of(self.arrival)
        refusal = replayed.scheduler.add(new, self.now, is_ready=self.is_ready)
        reason = None if refusal is None else refusal.reason
        if reason is self.refusal:
            return SAME
        return f"request {new.id}: recorded {_said(self.refusal)}, replayed {_said(reason)}"


class RequestResumed(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """A request that an ended engine had accepted, and the length of its output; `last_token` is
    the kind of its last token."""

    arrival: ArrivalSnapshot
    num_output_tokens: int
    last_token: int
    num_scored: int
    events: list[tuple[float, Reason, int]]
    now: float
    is_ready: bool
    refusal: Reason | None
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        new = request_of(self.arrival)
        plain = (PLAIN_TOKEN,) * (self.num_output_tokens - 1)
        outputs = (*plain, self.last_token) if self.num_output_tokens else ()
        timeline = tuple(Event(*event) for event in self.events)
        resumed = ResumedOutput(outputs, self.num_scored, timeline)
        refusal = replayed.scheduler.resume(new, resumed, self.now, is_ready=self.is_ready)
        reason = None if refusal is None else refusal.reason
        if reason is self.refusal:
            return SAME
        return f"request {new.id}: recorded {_said(self.refusal)}, replayed {_said(reason)}"


class PrefixUnpinned(msgspec.Struct, frozen=True, tag=9, array_like=True):
    """The blocks that a request has pinned may be evicted."""

    request_id: str
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        replayed.scheduler.unpin(self.request_id)
        return SAME


class TurnNoted(msgspec.Struct, frozen=True, tag=15, array_like=True):
    """An answer is over whose request has ended, and may call tools."""

    request_id: str
    now: float
    calls_tools: bool
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        replayed.scheduler.note_turn(self.request_id, self.now, calls_tools=self.calls_tools)
        return SAME


class RequestReady(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """A request that may be admitted from now on."""

    request_id: str
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        replayed.scheduler.make_ready(self.request_id)
        return SAME


class RequestAborted(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """A request that was ended from outside; `was_here` says whether the scheduler had it."""

    request_id: str
    now: float
    reason: Reason
    was_here: bool
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        was_here = replayed.scheduler.abort(self.request_id, self.now, self.reason) is not None
        if was_here == self.was_here:
            return SAME
        return f"request {self.request_id}: aborted, and it was there in one of the two alone"


class CacheReset(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """The prefix cache was made to forget."""

    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        replayed.scheduler.reset_prefix_cache()
        return SAME


class TenantsCharged(msgspec.Struct, frozen=True, tag=14, array_like=True):
    """The service of tenants, by number, in other engines."""

    served: dict[int, float]
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        served = {tenant_of(number): price for number, price in self.served.items()}
        replayed.scheduler.charge(served)
        return SAME


class ChainHashed(msgspec.Struct, frozen=True, tag=10, array_like=True):
    """The blocks of a request were hashed, to be looked for in slower stores."""

    request_id: str
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        replayed.scheduler.loads.chain_of(self.request_id)
        return SAME


class LoadStarted(msgspec.Struct, frozen=True, tag=11, array_like=True):
    """A request waits for blocks from a slower store."""

    request_id: str
    source: LoadSource
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        replayed.scheduler.loads.begin(self.request_id, self.source)
        return SAME


class LoadEnded(msgspec.Struct, frozen=True, tag=12, array_like=True):
    """A request waits no more, with `num_tokens` loaded tokens."""

    request_id: str
    num_tokens: int
    now: float
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        replayed.scheduler.loads.end(self.request_id, self.num_tokens, self.now)
        return SAME


class BlocksImported(msgspec.Struct, frozen=True, tag=13, array_like=True):
    """Blocks were taken for loaded data: for these places (block index and group) of a chain, whose
    digests are numbered in runs, by their positions."""

    chain: list[int]
    places: list[tuple[int, int]]
    taken: list[IncomingBlock]
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        cache, chain = replayed.cache, restored_chain(replayed.cache, self.chain)
        places = [
            BlockPosition(index, group, group_key(chain.digests[index], group))
            for index, group in self.places
        ]
        taken = cache.transfers.take_in(chain, places)
        cache.take_block_copies()
        same = taken == self.taken
        return SAME if same else f"other blocks were taken for what was read: {taken}"


class StepScheduled(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """A step was scheduled: how large it is, and a checksum of all that it says."""

    now: float
    number: int
    num_chunks: int
    num_tokens: int
    num_new: int
    checksum: int
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        step = replayed.scheduler.schedule(self.now)
        replayed.steps[step.number] = replayed.newest = step
        checksum = checksum_of(step, replayed.cache.usage)
        if step.number == self.number and checksum == self.checksum:
            return SAME
        new = [each.request.id for each in step.new_requests]
        return (
            f"step {self.number}: recorded {self.num_chunks} chunks, {self.num_tokens} tokens, "
            f"{self.num_new} admitted; replayed step {step.number}, {len(step.chunks)} chunks, "
            f"{step.num_tokens} tokens, {len(new)} admitted ({', '.join(new) or 'none'})"
        )


class StepUpdated(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """The result of a step was taken in. Of the tokens only this is kept: by request how many were
    `forced`, how many of a prompt were `scored`, and who ended by one that ends the sequence (or by
    a stop token) after how many tokens of this result. `finishes` is a checksum of who ended how.
    """

    number: int
    now: float
    copy_time: CopyTime
    forced: dict[str, int]
    scored: dict[str, int]
    ended: dict[str, int]
    stopped: dict[str, int]
    not_finite: frozenset[str]
    grammar_failed: frozenset[str]
    step_failed: frozenset[str]
    finishes: int
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        step = replayed.steps.pop(self.number, None)
        if step is None:
            return f"step {self.number}: its result was recorded, but it was not scheduled"
        deltas = replayed.scheduler.update(step, self._result(step), self.now)
        if finishes_of(deltas) == self.finishes:
            return SAME
        ended = [f"{each.request_id} ({each.finish.reason})" for each in deltas if each.finish]
        return (
            f"step {self.number}: others ended with it than was recorded; replayed: "
            f"{', '.join(ended) or 'none'}"
        )

    def _result(self, step: Step) -> StepResult:
        """Return a result whose tokens have the recorded kinds."""
        forced = {id: (PLAIN_TOKEN,) * num_tokens for id, num_tokens in self.forced.items()}
        first: dict[str, int] = {}
        for token_id, ends in ((END_TOKEN, self.ended), (STOP_TOKEN, self.stopped)):
            for request_id, num_tokens in ends.items():
                if num_tokens == 1:
                    first[request_id] = token_id
                else:
                    forced[request_id] = (*(PLAIN_TOKEN,) * (num_tokens - 2), token_id)
        return StepResult(
            step.number,
            tuple(
                first.get(chunk.request_id, PLAIN_TOKEN) for chunk in step.chunks if chunk.samples
            ),
            forced,
            prompt_logprobs={id: (_SCORE,) * num for id, num in self.scored.items()},
            not_finite=self.not_finite,
            grammar_failed=self.grammar_failed,
            step_failed=self.step_failed,
            copy_time=self.copy_time,
        )


class StepFailed(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """The scheduler raised an error, of the class `error`, over an input: a step that was to be
    scheduled, or the result of step `number`. Nothing comes behind it."""

    now: float
    number: int | None
    error: str
    answers: list[int]

    def apply(self, replayed: ReplayedScheduler) -> str:
        try:
            if self.number is None:
                replayed.scheduler.schedule(self.now)
            else:
                step = replayed.steps.pop(self.number)
                result = StepResult(step.number, (PLAIN_TOKEN,) * len(step.chunks))
                replayed.scheduler.update(step, result, self.now)
        except Exception as error:
            found = type(error).__name__
            return SAME if found == self.error else f"recorded {self.error}, replayed {found}"
        return f"recorded {self.error}, replayed none"


FromOutside: TypeAlias = (
    RequestAdded
    | RequestResumed
    | RequestReady
    | RequestAborted
    | CacheReset
    | PrefixUnpinned
    | TurnNoted
    | TenantsCharged
)
FromDisk: TypeAlias = ChainHashed | LoadStarted | LoadEnded | BlocksImported
Input: TypeAlias = FromOutside | FromDisk | StepScheduled | StepUpdated | StepFailed
Record: TypeAlias = SegmentStart | Input


def checksum_of(step: Step, usage: BlockUsage) -> int:
    """Return a checksum of the decisions of scheduler and cache in a step, with the blocks by state
    after it: complete, except for most pure decode steps (`_is_whole`)."""
    counts = step.number, len(step.chunks), step.num_tokens, usage
    if not _is_whole(step):
        return crc32(_ENCODER.encode(counts))
    new = [(each.request.id, len(each.token_ids), each.block_ids) for each in step.new_requests]
    decided = counts, step.finished_requests, new, step.chunks, step.block_copies
    return crc32(_ENCODER.encode(decided))


def _is_whole(step: Step) -> bool:
    """Return whether the checksum covers each chunk. In a pure decode step without new or finished
    requests and block copies, the chunks follow from the previous step; they are compared in one of
    WHOLE_EVERY such steps."""
    return (
        step.num_tokens != len(step.chunks)
        or step.number % WHOLE_EVERY == 0
        or bool(step.new_requests or step.finished_requests or step.block_copies)
    )


def finishes_of(deltas: list[Delta]) -> int:
    """Return a checksum of the ended requests and their reasons, 0 without any."""
    ended = [
        (each.request_id, finish.reason, finish.num_output_tokens, finish.num_cached_tokens)
        for each in deltas
        if (finish := each.finish) is not None
    ]
    return crc32(_ENCODER.encode(ended)) if ended else 0


def _said(refusal: Reason | None) -> str:
    return "accepted" if refusal is None else f"refused ({refusal})"
