"""Forecasts how requests that come at once are served: the real scheduler and cache in virtual
time, with steps that take what a cost model says.
"""

import msgspec

from quire.workbench.simulation.figures import Objective, SimFigures, figures_of
from quire.workbench.simulation.simulation import Costs, EngineSetup, SimLoad, Simulation
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest


class Burst(msgspec.Struct, frozen=True):
    """Requests that come at once, all alike, that share nothing. Lengths are in tokens."""

    num_requests: int
    num_input_tokens: int
    num_output_tokens: int

    @property
    def requests(self) -> list[TracedRequest]:
        """The requests, all sent at the beginning."""
        return [
            TracedRequest(
                f"r{number}",
                0.0,
                (PromptPart(number, self.num_input_tokens),),
                self.num_output_tokens,
            )
            for number in range(self.num_requests)
        ]


class Forecast(msgspec.Struct, frozen=True):
    """The forecast of a burst: the figures that `quire sim` tells of a run."""

    burst: Burst
    figures: SimFigures


def forecast(engine: EngineSetup, costs: Costs, burst: Burst) -> Forecast:
    """Return the forecast of a burst; of its requests those are refused which the scheduler does
    not take."""
    simulated = Simulation(engine, costs, SimLoad(burst.requests)).run()
    return Forecast(burst, figures_of(simulated, Objective()))
