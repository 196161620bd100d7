"""Reads a trace by the suffix of its file, or makes one of a shape."""

from pathlib import Path
from typing import NamedTuple

from quire.engine.recording.flight_file import SUFFIX, load_file
from quire.workbench.simulation.recorded import RecordedRun, read_run
from quire.workbench.simulation.simulation import SimLoad
from quire.workbench.simulation.traces.azure import read_azure
from quire.workbench.simulation.traces.mooncake import read_mooncake
from quire.workbench.simulation.traces.shapes import is_shape, parse_shape, requests_of
from quire.workbench.simulation.traces.trace_error import TraceError

SUFFIXES = (".csv", ".jsonl", SUFFIX)


class Trace(NamedTuple):
    """A trace: its load, and the run that it was recorded of, if it was."""

    load: SimLoad
    run: RecordedRun | None = None


def read_trace(name: str, seed: int) -> Trace:
    """Return the trace of a file (.csv as Azure's, .jsonl as Mooncake's, .flight of the flight
    recorder) or of a shape, which the seed draws. Raises TraceError, FlightFileError, OSError."""
    if is_shape(name):
        shape = parse_shape(name)
        return Trace(SimLoad(requests_of(shape, seed), shape.concurrency))
    path = Path(name)
    if path.suffix not in SUFFIXES:
        raise TraceError(
            f"a trace is a file that ends in {', '.join(SUFFIXES)}, or a shape such as "
            "poisson:rate=4"
        )
    if path.suffix == SUFFIX:
        run = read_run(load_file(path).segments)
        return Trace(SimLoad(run.requests()), run)
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            read = read_azure if path.suffix == ".csv" else read_mooncake
            return Trace(SimLoad(read(lines)))
    except UnicodeDecodeError as error:
        raise TraceError(f"it is not UTF-8: {error}") from None
