"""Flight records that are asked for: what the recorder of a model's engine holds is written to a
file while the engine goes on.
"""

import logging

from quire.engine.recording.flight_file import FileKind
from quire.engines.process.flight_ring import FlightRecord, FlightRing
from quire.server.errors import CONFLICT, NOT_FOUND, SERVER_ERROR, RequestError
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel

logger = logging.getLogger(__name__)


class FlightRecordWriter:
    """Writes one file at a time, for all models of a server."""

    def __init__(self) -> None:
        self._is_writing = False

    async def write(self, model: ServedModel, engine: int) -> FlightRecord:
        """Write the record of the model's engine of this number. Raises RequestError."""
        ring = _ring_of(model, engine)
        if self._is_writing:
            raise _not_now("Another flight record is being written: one is at a time.")
        self._is_writing = True
        try:
            record = await ring.dump()
        except OSError as error:
            model.metrics.flight_records.count(FileKind.ASKED, is_written=False)
            logger.warning("the flight record of %s cannot be written: %s", model.name, error)
            raise RequestError(
                f"The flight record cannot be written: {error}",
                code="flight_record_not_written",
                status=SERVER_ERROR,
            ) from error
        finally:
            self._is_writing = False
        if record is None:
            raise _not_now(f"{model.name} has recorded nothing yet, or its engine has just ended.")
        model.metrics.flight_records.count(FileKind.ASKED, is_written=True)
        return record


def _ring_of(model: ServedModel, engine: int) -> FlightRing:
    """Return the memory of the recorder of an engine. Raises RequestError where there is none."""
    if not model.config.engine.recording.flight_recorder_minutes:
        raise RequestError(
            f"{model.name} is served with --flight-recorder-minutes 0: nothing is recorded.",
            code="flight_recorder_off",
            status=NOT_FOUND,
        )
    if model.state is ModelState.FAILED:
        model.check_is_loaded()
    processes = model.engine.processes
    if processes and engine >= len(processes):
        raise RequestError(
            f"{model.name} has {len(processes)} engines, numbered from 0: there is no {engine}.",
            param="engine",
            code="engine_not_found",
            status=NOT_FOUND,
        )
    ring = processes[engine].ring if processes else None
    if not model.is_loaded or ring is None:
        raise RequestError(
            f"{model.name} is {model.state}: only a loaded model has a flight record.",
            code="model_not_loaded",
            status=CONFLICT,
        )
    return ring


def _not_now(message: str) -> RequestError:
    return RequestError(message, code="no_flight_record_now", status=CONFLICT)
