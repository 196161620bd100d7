"""Finds the waiting requests that should let others by, so that most of them have their first token
in time.

The method is Moore's (An n job, one machine sequencing algorithm for minimizing the number of late
jobs, Management Science 15, 1968): go through the queue; where a request would be late, the longest
prompt up to it is left out.

    targets 1 s, a second takes 1,000 tokens
    600   500   200   300        the second would be late: 600 is left out, then all others are
                                 in time
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from quire.scheduler.queue import LATE_SHARE, WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request

MAX_LOOKED_AT = 32
"""So many requests at the head of the queue are looked at for each that is admitted."""
UNDERCUT = 0.9
"""A prompt should end within this share of its target: how fast prompts go is an estimate."""


class LateRequest(NamedTuple):
    """A request that would be late by so many seconds, or make another late, and is left out."""

    request: Request
    seconds: float


class PromptSpeed(NamedTuple):
    """The tokens of prompts that are computed a second from `now` on, first the `num_begun` of
    those that run. While some are late, they are owed `late_debt` tokens, and get their share."""

    now: float
    tokens_per_s: float
    num_begun: int = 0
    late_debt: float | None = None

    def done_s(self, num_tokens: int) -> float:
        """Return when so many tokens of waiting prompts that let nobody by are computed."""
        num_tokens += self.num_begun
        num_late = 0.0
        if self.late_debt is not None:
            num_late = max(self.late_debt + LATE_SHARE * num_tokens, 0.0) / (1 - LATE_SHARE)
        return self.now + (num_tokens + num_late) / self.tokens_per_s


def can_be_late(request: Request) -> bool:
    """Return whether a waiting request has a target for a first token that it has not had."""
    return request.new.target_ttft_s is not None and not request.num_outputs


def let_others_by(
    waiting: WaitingQueue, num_begun: int, tokens_per_s: float | None, now: float
) -> None:
    """Put the first waiting requests that are left out (`late_requests`) behind the others, if the
    head may be among them. Before them come `num_begun` tokens of prompts; how many are computed a
    second may not be known."""
    head = waiting.head
    if head is None or head.is_late or not tokens_per_s or not can_be_late(head):
        return
    speed = PromptSpeed(now, tokens_per_s, num_begun, waiting.late_debt)
    first = waiting.first(MAX_LOOKED_AT)
    for request, seconds in late_requests(first, speed):
        waiting.make_late(request)
        request.note(now, Reason.LATE, int(1000 * seconds))


def late_requests(waiting: Iterable[Request], speed: PromptSpeed) -> list[LateRequest]:
    """Return those of the waiting requests, in their order, that are left out at this speed."""
    kept: list[tuple[int, int, Request]] = []
    late = []
    num_tokens = 0
    for number, request in enumerate(waiting):
        target_s = request.new.target_ttft_s
        if target_s is None or request.is_late or not can_be_late(request):
            continue
        num_tokens += len(request.token_ids)
        heappush(kept, (-len(request.token_ids), number, request))
        over_s = speed.done_s(num_tokens) - request.arrived_s - UNDERCUT * target_s
        if over_s > 0:
            longest = heappop(kept)
            num_tokens += longest[0]
            late.append(LateRequest(longest[2], over_s))
    return late
