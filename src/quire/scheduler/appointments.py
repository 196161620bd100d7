"""Computes `Retry-After` for requests that find the waiting queue full: one after another, each at
the time when a place will be free, so that clients do not all return at once.

The method is the generic cell rate algorithm (ITU-T I.371, annex A), which stores only the last
appointment.
"""

from collections import deque
from itertools import islice

from quire.scheduler.cost import CostModel
from quire.scheduler.expectations.outputs import OutputExpectations
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.running import RunningSet
from quire.scheduler.throughput import ThroughputEstimate

DECAY = 0.98
"""The decay of older requests with each ended one: about fifty count."""
MUCH_ROOM = 0.5
"""The share of the queue below which all appointments are forgotten."""
LATE = 1.25
"""The factor by which appointments are later than the expected free places. A client that returns
too early is refused again, behind all others; one that returns late costs nothing, because waiting
requests keep the engine busy."""
MAX_SEEN = 64
"""The maximum number of running requests that one refusal examines."""
MAX_GIVEN = 10_000
"""The maximum number of remembered appointments."""
MAX_AHEAD_S = 600.0
"""The maximum seconds until an appointment, which bounds the effect of a client that retries too
often."""


class Appointments:
    """The appointments of one queue. `cost` has the measured times of steps and tokens,
    `throughput` the recent rate of steps, `outputs` the expected lengths of outputs. The expected
    prompt is the recent mean of computed prompt tokens.
    """

    def __init__(
        self, cost: CostModel, throughput: ThroughputEstimate, outputs: OutputExpectations
    ) -> None:
        self._cost = cost
        self._throughput = throughput
        self._outputs = outputs
        self._last_s = 0.0
        self._place_s = 0.0
        self._given: deque[float] = deque(maxlen=MAX_GIVEN)
        self._num_ended = 0.0
        self._num_prompt = 0.0

    def note_end(self, request: Request) -> None:
        """Learn from a request that has ended."""
        self._num_ended = DECAY * self._num_ended + 1
        num_computed = request.num_prompt_tokens - request.num_cached
        self._num_prompt = DECAY * self._num_prompt + num_computed

    def note_entry(self, now: float, num_waiting: int, num_may: int) -> None:
        """Note an accepted request, with `num_waiting` of at most `num_may` requests waiting. It
        uses the first appointment that is due; otherwise it took a promised place, and later
        appointments shift. If few requests wait, all appointments are forgotten, because new
        requests are accepted anyway."""
        if num_waiting <= MUCH_ROOM * num_may:
            self._last_s = 0.0
            self._given.clear()
        elif self._given and self._given[0] <= now:
            self._given.popleft()
        elif self._last_s > now:
            self._last_s += self._place_s

    def give(self, new: NewRequest, now: float, running: RunningSet) -> float | None:
        """Return in how many seconds a request that was refused may come again; None while nothing
        is known of how long anything takes. `running` are those that hold what it waits for."""
        if self._cost.token_s is None:
            return None
        pace = self._throughput.pace
        token_s, step_s = pace * self._cost.token_s, pace * (self._cost.step_s or 0.0)
        some = list(islice(running, MAX_SEEN))
        num_running = max(len(running), 1)
        news = [each.new for each in some] or [new]
        outputs = [self._outputs.mean(each) for each in news]
        per_output_s = step_s + num_running * token_s
        per_place_s = sum(outputs) / len(outputs) * per_output_s / num_running
        per_place_s += self._prompt(new) * token_s
        if self._last_s <= now:
            left = (
                max(most - each.num_outputs, 1.0) for most, each in zip(outputs, some, strict=False)
            )
            self._last_s = now + (min(left, default=0.0) + 1) * per_output_s
        self._place_s = LATE * per_place_s
        self._last_s = min(self._last_s + self._place_s, now + MAX_AHEAD_S)
        self._given.append(self._last_s)
        return self._last_s - now

    def _prompt(self, new: NewRequest) -> float:
        """Return how many tokens of a prompt are expected to be computed."""
        if not self._num_ended:
            return float(len(new.prompt_token_ids))
        return self._num_prompt / self._num_ended
