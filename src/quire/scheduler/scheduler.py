"""Decides which requests compute how many tokens in the next step.

The scheduler is a pure state machine: no clock, no randomness, no I/O; the time comes in as an
argument. A request goes this way:

    add -> waiting -> admitted -> running -> finished
              ^--- preempted ------'

Running requests are scheduled first, in their running order, then waiting ones as the policy orders
them, late prompts last. Blocks are taken back from the tail of the running: nothing scheduled in a
step is taken back. The first of the running can always go on, so every accepted request ends.

Before that, a waiting request without room may take the places of running ones that are less urgent
(`urgency/`). They give way a few times only, so that no stream of urgent ones holds them back.
"""

from collections.abc import Iterable, Mapping

from quire.cache.kv_cache import KVCache
from quire.cache.kv_events import KVEvent
from quire.cache.sharing import SharingTerms
from quire.scheduler.acceptance import Acceptance
from quire.scheduler.accounts import Counters, finish_of, prefill_of, stats_of
from quire.scheduler.admission import Admission, Blocker
from quire.scheduler.appointments import Appointments
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import CostModel
from quire.scheduler.deadlines import Deadlines
from quire.scheduler.expectations.expectations import Expectations
from quire.scheduler.live.in_flight import InFlightRequests
from quire.scheduler.pacing.lateness import let_others_by
from quire.scheduler.pacing.pace import Pace, PaceRule, PromptShare
from quire.scheduler.pacing.step_work import work_of
from quire.scheduler.pinning import pin_prompt
from quire.scheduler.prefix_probe import PrefixProbe, probe_prefix
from quire.scheduler.prefix_waits import PrefixLoads
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import HOLDING_NOBODY, Reason
from quire.scheduler.request import Event, NewRequest, Request, ResumedOutput
from quire.scheduler.request_builder import RequestBuilder
from quire.scheduler.running import RunningSet
from quire.scheduler.sessions.sessions import Sessions
from quire.scheduler.shares import Shares
from quire.scheduler.step import BlockIds, Delta, Finish, Refusal, SeqChunk, Stats, Step, StepResult
from quire.scheduler.step_draft import StepDraft
from quire.scheduler.stopping import append_outputs, num_uncomputed, reason_to_stop
from quire.scheduler.throughput import ThroughputEstimate
from quire.scheduler.urgency.urgency import Urgency
from quire.scheduler.usage.meter import UsageMeter

NUM_TRIED = 4
"""The maximum number of requests behind a head without blocks that are tried in one step."""


class Scheduler:
    """Decides what each step computes. `schedule` and `update` alternate; an update may come one
    step late. `loads` handles reads from a slower store, `usage` meters the tenants, `pace` shares
    out the tokens of a step."""

    def __init__(self, config: SchedulerConfig, cache: KVCache) -> None:
        self._config = config
        self._cache = cache
        self._policy = config.policy
        self._shares = Shares()
        self._requests: dict[str, Request] = {}
        self._journal: list[tuple[str, Event]] = []
        self._waiting = WaitingQueue(self._shares)
        self._running = RunningSet(self._shares)
        self._deadlines = Deadlines()
        self._throughput = ThroughputEstimate()
        self._cost = CostModel(config.preemption_mode)
        self.pace: PaceRule = Pace()
        self._finished_requests: list[str] = []
        self._ended: list[Delta] = []
        self._number = 0
        self._num_admitted = 0
        self._counters = Counters()
        self.usage = UsageMeter(self._counters.usage, cache, self._waiting)
        counters, running, cost = self._counters, self._running, self._cost
        self._sessions = Sessions(config, cache, self._waiting, running, cost, counters.sessions)
        self._builder = RequestBuilder(cache, config.policy, self._sessions, self._journal)
        self._admission = Admission(config, cache, running, cost, counters, self._sessions)
        self._prefix_waits = self._admission.prefix_waits
        self._urgency = Urgency(
            config, cache, self._waiting, self._running, self._shares, self._admission
        )
        times, throughput = self.pace.times, self._throughput
        self._expectations = Expectations(
            config, self._prefix_waits, self._waiting, running, times, throughput, counters
        )
        outputs = self._expectations.outputs
        self._appointments = Appointments(self._cost, self._throughput, outputs)
        self._acceptance = Acceptance(
            config, cache, self._waiting, self._running, self._appointments
        )
        self.in_flight = InFlightRequests(self._running, self._waiting, cache, self.pace)
        self.loads = PrefixLoads(self._requests, self._cost, self._counters)

    @property
    def has_work(self) -> bool:
        """Whether requests are left, or the next update must report one that has ended."""
        return bool(self._requests or self._ended)

    @property
    def stats(self) -> Stats:
        """The accounts of this moment."""
        stats = stats_of(self._counters, len(self._running), self._waiting, self._cache)
        wait_s = self._throughput.seconds_for(self._waiting.num_tokens)
        return stats._replace(predicted_wait_s=wait_s, step_time_error=self.pace.times.error)

    def take_events(self) -> tuple[tuple[str, Event], ...]:
        """Return the new events of all timelines since the last call, by request id."""
        events = tuple(self._journal)
        self._journal.clear()
        return events

    def add(self, new: NewRequest, now: float, *, is_ready: bool = True) -> Refusal | None:
        """Take the request into the waiting queue, or return why not, with the numbers. One that is
        not ready is not admitted before `make_ready`."""
        refusal = self._acceptance.refusal(new, self._requests, now)
        if refusal is not None:
            return refusal
        request = self._builder.new(new, now, is_ready=is_ready)
        refusal = self._expectations.refusal(request)
        if refusal is not None:
            return refusal
        self._expectations.note_place(request, now)
        self._enter(request, now)
        return None

    def resume(
        self, new: NewRequest, resumed: ResumedOutput, now: float, *, is_ready: bool = True
    ) -> Refusal | None:
        """Take in a request that an engine which has ended had accepted. It waits like one that was
        preempted, ahead of all that are new, and is refused only if its id is in use or if it could
        never run. If its output is complete, the next update reports its end."""
        refusal = self._acceptance.resumed_refusal(new, self._requests)
        if refusal is not None:
            return refusal
        request = self._builder.resumed(new, resumed, now, is_ready=is_ready)
        request.note(now, Reason.ENGINE_RESTARTED, request.num_outputs)
        self._enter(request, now)
        reason = reason_to_stop(request, self._config.max_model_len)
        if request.num_outputs and reason is not None:
            self._ended.append(Delta(new.id, (), finish=self._finish(request, reason, now)))
        return None

    def make_ready(self, request_id: str) -> None:
        """Let the request be admitted, if it is still here."""
        if request_id in self._requests:
            self._requests[request_id].is_ready = True

    def abort(self, request_id: str, now: float, reason: Reason = Reason.ABORTED) -> Delta | None:
        """End the request and free its blocks at once; return None if it is not here (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        return Delta(request_id, (), finish=self._finish(request, reason, now))

    def reset_prefix_cache(self) -> None:
        """Make nothing that is cached findable again; nothing is pinned any more."""
        self._sessions.clear()
        self._cache.reset()
        self._prefix_waits.clear()
        self._counters.note_reset()

    def unpin(self, request_id: str) -> None:
        """Let the blocks that a request has pinned be evicted, if it has pinned any."""
        self._cache.pins.unpin(request_id)

    def note_turn(self, request_id: str, now: float, *, calls_tools: bool) -> None:
        """Note that the answer of a request that has ended is over, and whether it calls tools."""
        self._sessions.note_turn(request_id, now, calls_tools=calls_tools)

    def charge(self, served: Mapping[str, float]) -> None:
        """Charge tenants for their service in other engines."""
        self._shares.charge_elsewhere(served)

    def probe(self, token_ids: tuple[int, ...], sharing: SharingTerms) -> PrefixProbe:
        """Return the prefix hit of a prompt, without touching any block."""
        return probe_prefix(self._cache, token_ids, sharing)

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        """Return the stored and evicted blocks since the last call, if events are enabled."""
        return self._cache.take_kv_events()

    def schedule(self, now: float) -> Step:
        """Return the next step; it may be empty when all that is left awaits a late result."""
        self.usage.advance(now)
        self._sessions.advance(now)
        self._expire(now)
        late = self._running.late()
        kept, under_way = self._waiting.begin_step(len(late)), self._throughput.num_under_way
        draft = StepDraft(self._config.max_num_batched_tokens, under_way, late, kept)
        self._admission.update_offloading()
        self._schedule_urgent(draft, now)
        self._schedule_running(self._running, draft, now)
        self._schedule_waiting(draft, now)
        self._schedule_running(draft.take_late(), draft, now)
        self.pace.latest = draft.share
        self._number += 1
        leaves_someone = len(self._waiting) > draft.num_aside + draft.num_unready
        self._throughput.begin(self._number, now, leaves_someone=leaves_someone)
        finished_requests, self._finished_requests = tuple(self._finished_requests), []
        block_copies = self._cache.take_block_copies()
        self._counters.note_block_copies(block_copies)
        return draft.finished(self._number, finished_requests, block_copies)

    def update(self, step: Step, result: StepResult, now: float) -> list[Delta]:
        """Apply the result of a step and return the new tokens. Results for requests that ended or
        were preempted meanwhile are dropped."""
        self.usage.advance(now)
        seconds = self._throughput.end(step, now)
        copied = result.copy_time
        compute_s = max(seconds - copied.stall_s, 0.0)
        self._cost.observe_step(step.num_tokens, compute_s)
        if result.step_failure is None:
            self.pace.times.observe(work_of(step), compute_s)
        self._cost.observe_copies(copied)
        self._counters.note_step(result.launch, result.step_failure)
        deltas = []
        sampled = iter(result.token_ids)
        for chunk in step.chunks:
            token_id = next(sampled) if chunk.samples else None
            request = self._running.get(chunk.request_id)
            if request is None or request.admitted_step > step.number:
                continue
            delta = self._apply_result(request, chunk, token_id, result, now)
            if delta is not None:
                deltas.append(delta)
        self._expire(now)
        ended, self._ended = self._ended, []
        return deltas + ended

    def _enter(self, request: Request, now: float) -> None:
        self.usage.advance(now)
        self._requests[request.id] = request
        request.generated = self._counters.usage.open(request.new.tenant)
        self._deadlines.add(request)
        self._waiting.add(request)
        self._shares.open(request.tenant)
        self._sessions.enter(request, now)

    def _expire(self, now: float) -> None:
        """End the requests past their deadline; the next update reports them."""
        for request in self._deadlines.passed(now):
            if self._requests.get(request.id) is request:
                finish = self._finish(request, Reason.DEADLINE_EXCEEDED, now)
                self._ended.append(Delta(request.id, (), finish=finish))

    def _schedule_urgent(self, draft: StepDraft, now: float) -> None:
        """Admit waiting requests that lack room in the places of running ones that are less
        urgent, before any of these is scheduled."""
        while (claim := self._urgency.claim(draft, self._number)) is not None:
            request, number = claim.claimant, self._number
            admitted = self._admission.admit(request, draft, now, number, goes_first=True)
            blocker = admitted if isinstance(admitted, Blocker) else None
            if blocker is not None or claim.needs_sequence:
                victims = self._urgency.fewest(claim, blocker)
                for victim in victims:
                    self._preempt(victim, request, draft, now, Reason.PREEMPTED_FOR_URGENT)
                if victims and blocker is not None:
                    admitted = self._admission.admit(request, draft, now, number, goes_first=True)
            if isinstance(admitted, Blocker):
                break
            draft.num_kept = sum(each.admitted_step <= number for each in self._running)
            self._start_running(request, admitted, draft, now)
        draft.num_kept = 0

    def _schedule_running(self, running: Iterable[Request], draft: StepDraft, now: float) -> None:
        """Schedule running requests in their order, but for those of the draft that are `late`,
        while the token budget lasts."""
        max_model_len = self._config.max_model_len
        for request in running:
            if not draft.tokens_left:
                return
            if draft.num_preempted and request not in self._running:
                continue
            if request.admitted_step > self._number or (draft.late and request.lets_others_by):
                continue
            num_tokens = min(num_uncomputed(request, max_model_len), draft.tokens_left)
            if num_tokens > 1:
                num_tokens = self._paced(request, num_tokens, draft, now)
            if num_tokens == 0:
                continue
            new_block_ids = self._grow(request, num_tokens, draft, now)
            if new_block_ids is not None:
                self._schedule_chunk(request, num_tokens, new_block_ids, draft)

    def _paced(self, request: Request, num_tokens: int, draft: StepDraft, now: float) -> int:
        """Return how many of the next `num_tokens` of a prompt are computed in this step, so that
        running outputs keep their pace."""
        share = self._share(draft)
        most = min(draft.room(request.num_computed), share.most_of_one)
        if num_tokens > most and share.num_tokens:
            request.note(now, Reason.PACED, share.num_tokens, share.tightest)
        return min(num_tokens, most)

    def _share(self, draft: StepDraft) -> PromptShare:
        """Return the share of prompts in the step."""
        if draft.share is None:
            draft.share = self.pace.share(self._running, self._throughput.pace)
        return draft.share

    def _schedule_chunk(
        self, request: Request, num_tokens: int, new_block_ids: BlockIds, draft: StepDraft
    ) -> None:
        """Add the request's next `num_tokens` to the step."""
        if request.num_charged < request.num_prompt_tokens:
            self._shares.charge_prompt(request, request.num_computed + num_tokens)
        start = request.num_computed
        states = self._cache.plan_states(request.table, start, start + num_tokens)
        if draft.add_chunk(request, num_tokens, new_block_ids, states):
            self._waiting.note_prompt(request, num_tokens)
        if num_tokens > 1:
            self._prefix_waits.add_chunk(request, start, start + num_tokens)
        if request.prompt_step is None and request.num_computed >= request.num_prompt_tokens:
            request.prompt_step = self._number + 1

    def _grow(
        self, request: Request, num_tokens: int, draft: StepDraft, now: float
    ) -> BlockIds | None:
        """Return blocks for the next `num_tokens`, if need be by preempting others; None if this
        request itself is preempted, or waits a step."""
        start, end = request.num_computed, request.num_computed + num_tokens
        while (new_block_ids := self._cache.grow(request.table, start, end)) is None:
            victim = self._running.victim(request, self._number)
            if victim is None or draft.has(victim):
                return None
            self._preempt(victim, request, draft, now, Reason.PREEMPTED_FOR_BLOCKS)
            if victim is request:
                return None
        return new_block_ids

    def _preempt(
        self, victim: Request, taker: Request, draft: StepDraft, now: float, reason: Reason
    ) -> None:
        """Move the victim back to the waiting queue: its blocks go back, to the host if that costs
        less than to compute them again. Its outputs stay, and so does its priority key.
        """
        other = "" if victim is taker else taker.id
        num_kept = self._admission.swap_out(victim)
        if num_kept is not None:
            victim.note(now, Reason.SWAPPED_OUT, num_kept, other)
        else:
            self._cache.release(victim.table)
            victim.note(now, reason, victim.num_computed, other)
        self._running.remove(victim)
        self._prefix_waits.drop(victim)
        is_urgent = reason is Reason.PREEMPTED_FOR_URGENT
        victim.num_urgent += is_urgent
        self._counters.note_preemption(
            victim, was_swapped=num_kept is not None, is_urgent=is_urgent
        )
        self._admission.note_preemption(self._number)
        draft.num_preempted += 1
        victim.put_back()
        self._finished_requests.append(victim.id)
        self._waiting.add(victim)

    def _schedule_waiting(self, draft: StepDraft, now: float) -> None:
        """Admit from the head while token budget, sequences and blocks allow; the first request
        that must wait gets the reason. If it lacks blocks, smaller requests may pass; if it waits
        for a prefix, requests may pass that do not delay it."""
        aside = []
        if self._waiting.head is not None:
            self._share(draft)
        while (head := self._next_waiting(draft, now)) is not None:
            if head.is_late:
                self._schedule_running(draft.take_late(), draft, now)
            blocker = self._admission.blocker(head, draft) or self._admit(head, draft, now)
            if blocker is None:
                continue
            head.note(now, *blocker)
            if self._sessions.holds(head, blocker.reason, now):
                continue
            if blocker.reason not in HOLDING_NOBODY:
                if blocker.reason is Reason.WAITS_FOR_BLOCKS:
                    self._skip_ahead(head, draft, now)
                break
            self._waiting.remove(head)
            aside.append(head)
        for request in aside:
            self._waiting.restore(request)
        self._expectations.look_again(now)

    def _next_waiting(self, draft: StepDraft, now: float) -> Request | None:
        """Return the request to be admitted next. Those that cannot have their first token in time,
        or would keep more others from it, let these by."""
        self._waiting.held_first = self._sessions.lets_held_in(now)
        if (share := draft.share) is not None:
            let_others_by(self._waiting, share.num_begun, self._throughput.tokens_per_s, now)
        return self._waiting.head

    def _skip_ahead(self, head: Request, draft: StepDraft, now: float) -> None:
        """Admit requests from behind the head until a passed request must not be skipped again."""
        passed = [head]
        for request in self._waiting.first(1 + NUM_TRIED)[1:]:
            holder = next((each for each in passed if self._admission.holds_back(each)), None)
            if holder is not None:
                request.note(now, Reason.WAITS_FOR_SKIPPED, holder.num_skips, holder.id)
                continue
            blocker = self._admission.blocker(request, draft) or self._admit(request, draft, now)
            if blocker is not None:
                request.note(now, blocker.reason, blocker.number, blocker.other or head.id)
                self._sessions.holds(request, blocker.reason, now)
                if request.is_ready and request.loading_from is None:
                    passed.append(request)
                continue
            for each in passed:
                each.num_skips += 1

    def _admit(self, request: Request, draft: StepDraft, now: float) -> Blocker | None:
        """Take blocks for all known tokens of the request and schedule its first chunk, or return
        the reason it must wait."""
        admitted = self._admission.admit(request, draft, now, self._number)
        if isinstance(admitted, Blocker):
            return admitted
        self._start_running(request, admitted, draft, now)
        return None

    def _start_running(
        self, request: Request, num_computed: int, draft: StepDraft, now: float
    ) -> None:
        """Move the request, which has blocks for all its known tokens, to the running set and
        schedule its first chunk."""
        self._waiting.remove(request)
        self._sessions.admit(request)
        self._waiting.note_admission(request)
        self._prefix_waits.admit(request)
        self._num_admitted += 1
        request.running_order = self._policy.running_order(request, number=self._num_admitted)
        self._running.add(request)
        request.admitted_step = self._number + 1
        request.num_computed = num_computed
        if num_computed >= request.num_prompt_tokens:
            request.prompt_step = self._number
        draft.add_new_request(request)
        num_tokens = min(len(request.token_ids) - num_computed, draft.tokens_left)
        if num_tokens > 1:
            num_tokens = self._paced(request, num_tokens, draft, now)
        num_tokens = max(self._waiting.most_of(request, num_tokens), 1)
        self._schedule_chunk(request, num_tokens, (), draft)

    def _apply_result(
        self, request: Request, chunk: SeqChunk, token: int | None, result: StepResult, now: float
    ) -> Delta | None:
        """Take one chunk's result into its request: its blocks advance, and its output grows up to
        a token that ends it."""
        scores = result.prompt_logprobs.get(request.id)
        scored = request.take_scores(chunk.start, scores) if scores else ()
        if (failure := result.failure(request.id)) is not None:
            return Delta(request.id, (), (), scored, self._finish(request, failure, now))
        num_computed = chunk.start + chunk.num_tokens
        self._cache.advance(request.table, request.token_ids, num_computed)
        if chunk.num_tokens > 1:
            self._prefix_waits.advance(request, num_computed)
        prefill = prefill_of(request, num_computed)
        if request.samples_none and num_computed >= request.num_prompt_tokens:
            self._counters.note_prompt(request, now)
            pin_prompt(request, self._config, self._cache, now)
            ended = self._finish(request, Reason.PROMPT_COMPUTED, now)
            vector = result.vectors.get(request.id, b"")
            return Delta(request.id, (), (), scored, ended, prefill, vector)
        if token is None:
            is_told = scored or prefill is not None
            return Delta(request.id, (), (), scored, prefill=prefill) if is_told else None
        request.num_pending -= 1
        outputs = (token, *result.forced.get(request.id, ())) if result.forced else (token,)
        token_ids, reason = append_outputs(request, outputs, self._config.max_model_len)
        self._shares.charge_outputs(request, len(token_ids))
        self._counters.note_outputs(request, len(token_ids), now)
        logprob = result.logprobs.get(request.id)
        logprobs = () if logprob is None else (logprob,)
        finish = None if reason is None else self._finish(request, reason, now)
        return Delta(request.id, token_ids, logprobs, scored, finish, prefill)

    def _finish(self, request: Request, reason: Reason, now: float) -> Finish:
        self.usage.advance(now)
        request.note(now, reason, request.token_ids[-1])
        self._sessions.leave(request, now)
        self._appointments.note_end(request)
        self._expectations.outputs.note_end(request)
        del self._requests[request.id]
        self._counters.usage.close(request.new.tenant)
        self._shares.close(request.tenant)
        self._prefix_waits.drop(request)
        if request not in self._running:
            self._waiting.remove(request)
            self._cache.forget(request.table)
        else:
            self._running.remove(request)
            self._cache.release(request.table)
            self._finished_requests.append(request.id)
        return finish_of(request, reason, now)
