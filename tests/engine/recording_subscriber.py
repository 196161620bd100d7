"""A subscriber to an engine that keeps what it is told."""

from dataclasses import dataclass, field

from quire.engine.messages import EngineOutput
from quire.engines.process.end_cause import EndCause
from quire.scheduler.step import Delta


@dataclass
class RecordingSubscriber:
    """Keeps outputs, the requests that ended without an engine, and the causes of ends."""

    outputs: list[EngineOutput] = field(default_factory=list)
    ended_here: list[Delta] = field(default_factory=list)
    causes: list[EndCause] = field(default_factory=list)
    num_resumed: list[int] = field(default_factory=list)
    num_quarantined: int = 0
    flight_records: list[bool] = field(default_factory=list)

    def on_output(self, output: EngineOutput) -> None:
        self.outputs.append(output)

    def on_ended_here(self, delta: Delta) -> None:
        self.ended_here.append(delta)

    def on_engine_lost(self, cause: EndCause) -> None:
        self.causes.append(cause)

    def on_quarantined(self) -> None:
        self.num_quarantined += 1

    def on_flight_kept(self, is_written: bool) -> None:
        self.flight_records.append(is_written)

    def on_engine_resumed(self, num_resumed: int, out_of_service_s: float) -> None:
        self.num_resumed.append(num_resumed)
