"""The times of a simulation's steps: as a cost model says, or as they were recorded."""

import random
from typing import NamedTuple, Protocol

from quire.scheduler.pacing.step_work import work_of
from quire.scheduler.step import Step
from quire.workbench.simulation.cost.cost_file import GapCost
from quire.workbench.simulation.cost.step_cost import StepCost


class SimulatedDevice(Protocol):
    """Says when steps end and the next begin, in seconds of the simulated clock."""

    def wake_s(self, arrival_s: float) -> float:
        """Return when an idle engine begins a step for a request that arrives at `arrival_s`."""
        ...

    def end_s(self, step: Step, began_s: float) -> float:
        """Return when a step ends that the device begins at `began_s`."""
        ...

    def next_s(self, step: Step, ended_s: float) -> float:
        """Return when the engine may schedule another step after one whose result it has."""
        ...


class CostedDevice:
    """A device whose steps take what a cost model says, times one of `ratios`, drawn by the seed:
    these are the errors of the model, so that simulated times spread as measured ones did."""

    def __init__(
        self, cost: StepCost, gap: GapCost, ratios: tuple[float, ...] = (), seed: int = 0
    ) -> None:
        self._cost = cost
        self._gap = gap
        self._ratios = ratios
        self._random = random.Random(seed).random

    def wake_s(self, arrival_s: float) -> float:
        """Return when an idle engine begins a step: at once."""
        return arrival_s

    def end_s(self, step: Step, began_s: float) -> float:
        """Return when a step ends that the device begins at `began_s`."""
        seconds = self._cost.step_s(work_of(step))
        if self._ratios:
            seconds *= self._ratios[int(self._random() * len(self._ratios))]
        return began_s + seconds

    def next_s(self, step: Step, ended_s: float) -> float:
        """Return when the engine has sent a step's results and read what came."""
        return ended_s + self._gap.base_s + self._gap.seq_s * len(step.chunks)


class RecordedStep(NamedTuple):
    """When a step was scheduled and when its result came, in seconds of the recorded clock."""

    began_s: float
    ended_s: float


class RecordExhausted(Exception):
    """The simulation takes more steps than were recorded."""


class RecordedDevice:
    """A device whose steps begin and end as recorded ones did, one after the other."""

    def __init__(self, steps: tuple[RecordedStep, ...]) -> None:
        self._steps = steps
        self._next = 0
        self._num_ended = 0

    def wake_s(self, arrival_s: float) -> float:
        """Return when the next recorded step began."""
        return self._began_s(arrival_s)

    def end_s(self, step: Step, began_s: float) -> float:
        """Return when the recorded step ended. Raises RecordExhausted behind the last."""
        if self._next == len(self._steps):
            raise RecordExhausted(f"step {self._next + 1} was not recorded")
        self._next += 1
        return max(self._steps[self._next - 1].ended_s, began_s)

    def next_s(self, step: Step, ended_s: float) -> float:
        """Return when the next recorded step began."""
        return self._began_s(ended_s)

    def _began_s(self, otherwise_s: float) -> float:
        done = self._next == len(self._steps)
        return otherwise_s if done else max(self._steps[self._next].began_s, otherwise_s)
