"""The interface of what tells how long a step takes."""

from typing import Protocol

from quire.scheduler.pacing.step_work import StepWork


class StepCost(Protocol):
    """Tells how long a device computes a step: fitted from measured steps, or derived from the
    device's rates."""

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of a step of this work."""
        ...
