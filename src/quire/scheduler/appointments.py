"""Tells those who find the waiting queue full when to come again: one after another, each when a
place will be free for it, so that they do not all come back at once.

The appointments are kept as the generic cell rate algorithm keeps its time (ITU-T I.371, annex A):
the last one given is all that is known of them.
"""

from collections import deque
from itertools import islice

from quire.scheduler.cost import CostModel
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.running import RunningSet
from quire.scheduler.throughput import ThroughputEstimate

DECAY = 0.98
"""The weight of older requests when one more has ended: some fifty count."""
MUCH_ROOM = 0.5
"""The share of a queue below which it is not full for long."""
LATE = 1.25
"""Appointments are later by so much than places are expected: who comes too soon is refused again,
behind all others, while those that wait keep the engine busy for who comes a little late."""
MAX_SEEN = 64
"""So many of the running are looked at for one refusal."""
MAX_GIVEN = 10_000
"""So many appointments are remembered."""
MAX_AHEAD_S = 600.0
"""No appointment is later than so many seconds from now: who asks too often makes many."""


class Appointments:
    """The appointments of one queue; `cost` is what steps and tokens take there, `throughput` how
    fast steps follow each other.

    A request is expected to generate that share of what it may which those that ended lately did
    of what they might, or all of it before any has ended; its prompt costs as theirs did.
    """

    def __init__(self, cost: CostModel, throughput: ThroughputEstimate) -> None:
        self._cost = cost
        self._throughput = throughput
        self._last_s = 0.0
        self._place_s = 0.0
        self._given: deque[float] = deque(maxlen=MAX_GIVEN)
        self._num_ended = 0.0
        self._num_might = 0.0
        self._num_outputs = 0.0
        self._num_prompt = 0.0

    def note_end(self, request: Request) -> None:
        """Learn from a request that has ended."""
        self._num_ended = DECAY * self._num_ended + 1
        self._num_might = DECAY * self._num_might + request.new.stopping.max_tokens
        self._num_outputs = DECAY * self._num_outputs + request.num_outputs
        num_computed = request.num_prompt_tokens - request.num_cached
        self._num_prompt = DECAY * self._num_prompt + num_computed

    def note_entry(self, now: float, num_waiting: int, num_may: int) -> None:
        """Note that a request got in while so many waited of those that may. It is taken for one
        whose time had come; where there is none, it took a place that somebody was told of. All
        appointments are forgotten where few waited: whoever comes now gets in."""
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
        outputs = [self._outputs(each.new) for each in some] or [self._outputs(new)]
        per_output_s = step_s + num_running * token_s
        per_place_s = sum(outputs) / len(outputs) * per_output_s / num_running
        per_place_s += self._prompt(new) * token_s
        if self._last_s <= now:
            left = (max(self._outputs(each.new) - each.num_outputs, 1.0) for each in some)
            self._last_s = now + (min(left, default=0.0) + 1) * per_output_s
        self._place_s = LATE * per_place_s
        self._last_s = min(self._last_s + self._place_s, now + MAX_AHEAD_S)
        self._given.append(self._last_s)
        return self._last_s - now

    def _outputs(self, new: NewRequest) -> float:
        """Return how many tokens a request is expected to generate."""
        share = self._num_outputs / self._num_might if self._num_might else 1.0
        return share * new.stopping.max_tokens

    def _prompt(self, new: NewRequest) -> float:
        """Return how many tokens of a prompt are expected to be computed."""
        if not self._num_ended:
            return float(len(new.prompt_token_ids))
        return self._num_prompt / self._num_ended
