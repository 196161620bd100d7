"""The protocol of whoever listens to a supervisor and its engines."""

from typing import Protocol

from quire.engine.messages import EngineOutput
from quire.engines.process.end_cause import EndCause
from quire.scheduler.step import Delta


class EngineSubscriber(Protocol):
    """A subscriber to an engine and those that follow it, called in the event loop."""

    def on_output(self, output: EngineOutput) -> None:
        """Take what an engine tells, before its deltas reach their streams."""

    def on_ended_here(self, delta: Delta) -> None:
        """Take the last delta of a request that has ended while no engine had it."""

    def on_engine_lost(self, cause: EndCause) -> None:
        """Note that an engine has ended, its cache with it, and that another follows."""

    def on_quarantined(self) -> None:
        """Note that a request was ended because it crashes engines."""

    def on_engine_resumed(self, num_resumed: int, out_of_service_s: float) -> None:
        """Note that another engine goes on with `num_resumed` requests."""

    def on_flight_kept(self, is_written: bool) -> None:
        """Note that the flight record of an engine that has ended was written, or could not be."""
