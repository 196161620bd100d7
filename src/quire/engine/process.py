"""The engine's own process: `python -m quire.engine.process SOCKET RECORD RING`, started by
`launch.py`, or a fork of the process that stands by (`forker.py`).

The socket is its only input and output, but for the memory that it shares with the server. The
first frame is the configuration; then the process loads the model, sends Ready, and takes steps
until the socket closes. It sends an error as Failed before it ends; an unexpected one is logged
here too, with its traceback. What is slow to import is imported once the configuration has arrived,
in a fork it was before.
"""

import faulthandler
import gc
import logging
import signal
import socket
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from quire.cache.sizing import TooLittleMemory
from quire.engine.channel import Channel, ChannelClosed
from quire.engine.config import TOY_MODEL, EngineConfig, LogFormat, TracingConfig
from quire.engine.failure_kind import kind_of, start_failure_of
from quire.engine.imports import import_engine
from quire.engine.launch import Descriptors
from quire.engine.messages import Failed, Loading, Ready
from quire.engine.running_record import RunningRecord, RunningRequests
from quire.logs import JsonFormatter
from quire.models.config import CheckpointError, UnsupportedModel
from quire.process_age import process_age_s
from quire.progress import log_format

logger = logging.getLogger(__name__)

FAILED = 1
LOG_FORMAT = "%(asctime)s %(levelname)s {name}: %(message)s"
EXPECTED = (CheckpointError, TooLittleMemory, UnsupportedModel, ValueError)
"""Errors that settings can lead to: their text is enough, no traceback is logged."""
PROCESS_NAME = Path("/proc/self/comm")


def run(fds: Descriptors, imported_since_s: float | None = None) -> None:
    """Run an engine until its socket closes, and end the process if it fails. Where all is imported
    already, the engine was in the making since `imported_since_s` (`time.monotonic`)."""
    set_process_name("quire-engine")
    channel = Channel(socket.socket(fileno=fds.socket))
    try:
        _serve(channel, fds, imported_since_s)
    except ChannelClosed:
        return
    except Exception as error:
        logger.exception("the engine ends")
        with suppress(ChannelClosed):
            channel.send(Failed(f"{type(error).__name__}: {error}", kind_of(error)))
        sys.exit(FAILED)


def _serve(channel: Channel, fds: Descriptors, imported_since_s: float | None) -> None:
    """Load what the configuration in the first frame names, then run the engine's loop."""

    def report_progress(phase: str, done: int, total: int) -> None:
        channel.send(Loading(phase, done, total))

    (body,) = channel.receive(wait=True)
    config = msgspec.msgpack.decode(body, type=EngineConfig)
    if config.ring_fd is not None:
        config = replace(config, ring_fd=fds.ring)
    logging.getLogger().setLevel(config.tracing.log_level.upper())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_formatter(config.tracing))
    began_s = imported_since_s
    if began_s is None:
        began_s = time.monotonic() - process_age_s(time.time())
        report_progress("imports", 0, 1)
        is_toy, is_lean = config.model.model == TOY_MODEL, not config.model.trust_remote_code
        import_engine(is_toy=is_toy, is_lean=is_lean)
    from quire.engine.loop import EngineLoop
    from quire.engine.startup.build import build_engine

    report_progress("imports", 1, 1)
    try:
        engine, facts = build_engine(
            config, on_progress=report_progress, clock=time.monotonic, began_s=began_s
        )
    except EXPECTED as error:
        channel.send(Failed(str(error), start_failure_of(error)))  # the server logs it
        sys.exit(FAILED)
    with closing(engine):
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection need look at it again
        channel.send(Ready(facts))
        engine.running = RunningRequests(RunningRecord(fds.record))
        EngineLoop(engine, channel).run()


def _formatter(config: TracingConfig) -> logging.Formatter:
    if config.log_format is LogFormat.JSON:
        return JsonFormatter(f"quire.{config.log_name}")
    text = LOG_FORMAT.format(name=config.log_name.replace("%", "%%"))
    return logging.Formatter(log_format(sys.stderr, text))


def prepare_process() -> None:
    """Set up the log and the signals of a process of engines. SIGUSR1 writes the stacks of all
    threads to the log."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_formatter(TracingConfig()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end


def set_process_name(name: str) -> None:
    """Name this process for `ps` and `top`, which show 15 characters."""
    with suppress(OSError):
        PROCESS_NAME.write_text(name)


def main() -> None:
    """Run the engine process. The arguments are its file descriptors."""
    prepare_process()
    run(Descriptors(*map(int, sys.argv[1:])))


if __name__ == "__main__":
    main()
