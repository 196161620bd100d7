"""Lines of the log as JSON objects, for programs that collect them."""

import json
import logging
import time

FIELDS = "fields"
"""The attribute of a log record that holds what a line tells beside its message."""


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: time (UTC), level, logger, message, the record's fields,
    and the traceback of an exception. `logger` replaces the name of the record's."""

    def __init__(self, logger: str | None = None) -> None:
        super().__init__()
        self._logger = logger

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": self._logger or record.name,
            "message": record.getMessage(),
        }
        line |= record.__dict__.get(FIELDS, {})
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
