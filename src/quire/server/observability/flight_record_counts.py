"""Counts of the files of a flight recorder, for the metrics."""

from collections import Counter

from quire.engine.recording.flight_file import FileKind


class FlightRecordCounts:
    """The files that were written, and those that could not be, by their kinds."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter({kind: 0 for kind in FileKind})
        self.failed: Counter[str] = Counter({kind: 0 for kind in FileKind})

    def count(self, kind: FileKind, *, is_written: bool) -> None:
        """Count one file."""
        (self.written if is_written else self.failed)[kind] += 1
