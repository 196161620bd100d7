"""Makes a cost model of flight records: of the steps of a real engine."""

import os
import platform
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from quire.engine.recording.flight_file import load_file
from quire.workbench.simulation.against_record import shape_of
from quire.workbench.simulation.cost.cost_file import FORMAT, CostFile, ServerCost
from quire.workbench.simulation.cost.fit import MeasuredStep, fit_gaps, fit_steps
from quire.workbench.simulation.cost.server_fit import fit_server, read_lone_client
from quire.workbench.simulation.recorded import RecordedAnswer, read_run


def calibrate(
    paths: Sequence[Path],
    client: Path | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> CostFile:
    """Return the cost model that fits the steps of all records; the limits are those of the engine
    of the last, and the machine is this one. `client` is a report of `quire bench --json` on one
    client at a time, whose requests the records have; without it the server adds nothing. Raises
    FlightFileError, CostFileError, TooFewSteps, OSError."""
    steps: list[MeasuredStep] = []
    answers: list[Collection[RecordedAnswer]] = []
    for number, path in enumerate(paths):
        on_progress(number)
        file = load_file(path)
        run = read_run(file.segments)
        answers.append(run.answers.values())
        steps += run.measured_steps()
    coefficients, errors = fit_steps(steps)
    return CostFile(
        FORMAT,
        Path(file.head.model).name,
        f"{platform.platform()}, {os.cpu_count()} CPUs",
        f"fitted to {errors.num_steps} steps of {len(paths)} flight records",
        coefficients,
        shape_of(run),
        fit_gaps(steps),
        ServerCost() if client is None else fit_server(answers, read_lone_client(client)),
        fit=errors,
    )
