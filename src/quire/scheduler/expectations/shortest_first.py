"""Orders requests that the policy holds equal by the seconds of the machine that they are expected
to take: the longer, the later a request counts as having come.

    a  comes at 0 s, is expected to take 4 s     counts as come 64 x 4 s later, bent to 179 s
    b  comes at 9 s, is expected to take 1 s     counts as come 64 s later, bent to 58 s, at 67 s
    c  comes at 130 s, as short as b             counts as come at 188 s: the order is b, a, c

A request is passed only by requests that come less than SLOWDOWN times the difference of their
seconds after it, and less than `most_s` after it in any case, towards which the time is bent, so
that no stream of short ones holds it back for ever. Under `priority` that is the time in which it
counts as one better: a class is not left.

Prompts count without what is cached, and what others are computing. That changes while a request
waits: the first of the queue are looked at again, so that those whose prefix has come go together.
"""

from quire.scheduler.accounts import Counters
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.expectations.service import ExpectedService
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.scheduler.prefix_waits import PrefixWaits
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Outlook, Request
from quire.scheduler.running import RunningSet

SLOWDOWN = 64.0
"""The seconds that a request counts as having come later for each second that it takes. On Azure's
code trace at overload 16 lowers the median end by a fourth, 64 by 60 % with the 99th percentile
unchanged, 256 by 87 % with that 30 % later (decision 144)."""
MAX_LATER_S = 600.0
"""The most seconds that a request counts as having come later."""
NUM_NEAR = 16
"""The maximum number of requests at the head of the queue that are looked at again in a step."""


def later_s(expected_s: float, most_s: float) -> float:
    """Return the seconds that a request which takes `expected_s` counts as having come later: less
    than `most_s`, and growing by SLOWDOWN seconds for each second at most."""
    seconds = SLOWDOWN * expected_s
    return most_s * seconds / (most_s + seconds)


class ShortestFirst:
    """Sets the keys of waiting requests, if the configuration says so."""

    def __init__(
        self,
        config: SchedulerConfig,
        service: ExpectedService,
        prefix_waits: PrefixWaits,
        waiting: WaitingQueue,
        running: RunningSet,
        counters: Counters,
    ) -> None:
        self._counters = counters
        self._policy = config.policy
        self._is_on = config.queue_order is QueueOrder.SHORTEST
        by_priority = config.scheduling_policy is PolicyName.PRIORITY
        self._most_s = min(config.priority_ageing_s, MAX_LATER_S) if by_priority else MAX_LATER_S
        self._service = service
        self._prefix_waits = prefix_waits
        self._waiting = waiting
        self._running = running

    def place(self, request: Request) -> None:
        """Set the key of a new request, before it is in the queue."""
        if self._is_on:
            outputs_s = self._service.outputs_s(request.new, len(self._running))
            num_found = self._prefix_waits.num_coming(request)
            self._set_key(request, Outlook(outputs_s, num_found))

    def note_place(self, request: Request, now: float) -> None:
        """Note by how much a new request counts as having come later, and if it is before the head
        of its queue."""
        if not self._is_on:
            return
        ms = round(1000 * self._later_s(request))
        if ms:
            request.note(now, Reason.COUNTS_LATER, ms)
        if not self._waiting.ahead(request).num_requests:
            self._note_passed(self._waiting.head, request, now)

    def look_again(self, now: float) -> None:
        """Set the keys of the first of the queue again, where more or less of their prompts is
        found by now, or computed by the step that has just been scheduled: every chunk of a prompt
        is seen once, so that nothing long is looked up step after step."""
        if not self._is_on or not len(self._waiting):
            return
        head = self._waiting.head
        for request in self._waiting.first(NUM_NEAR):
            outlook = request.outlook
            if outlook is None or request.num_preemptions or request.new.fork_of is not None:
                continue
            is_growing = self._prefix_waits.continues(request, outlook.num_found)
            if outlook.is_near and not is_growing:
                continue
            num_found = self._prefix_waits.num_coming(request)
            near = Outlook(outlook.outputs_s, num_found, is_near=True)
            if num_found == outlook.num_found:
                request.outlook = near
                continue
            self._waiting.remove(request)
            self._set_key(request, near)
            self._waiting.restore(request)
        self._note_passed(head, self._waiting.head, now)

    def _note_passed(self, head: Request | None, other: Request | None, now: float) -> None:
        """Note once of the head of a queue that another is before it since it is shorter."""
        if head is None or other is None or head is other or head.tenant != other.tenant:
            return
        saved_s = self._later_s(head) - self._later_s(other)
        is_shorter = head.new.priority == other.new.priority and saved_s > 0
        if is_shorter and all(event.reason is not Reason.LET_BY for event in head.timeline):
            self._counters.num_let_by += 1
            head.note(now, Reason.LET_BY, round(1000 * saved_s), other.id)

    def _set_key(self, request: Request, outlook: Outlook) -> None:
        request.outlook = outlook
        arrived_s = request.arrived_s + self._later_s(request)
        number = request.priority_key[1]
        request.priority_key = self._policy.priority_key(
            request.new, arrived_s=arrived_s, lead_s=request.lead_s, number=number
        )

    def _later_s(self, request: Request) -> float:
        outlook = request.outlook
        if outlook is None:
            return 0.0
        prompt_s = self._service.prompt_s(request.num_prompt_tokens, outlook.num_found)
        return later_s(prompt_s + outlook.outputs_s, self._most_s)
