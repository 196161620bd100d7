"""The engine's own process: `python -m quire.engine.process SOCKET RECORD RING`, started by
`launch.py`, or a fork of the process that stands by (`forker.py`).

The socket is its only input and output, but for the memory that it shares with the server. The
first frame is the configuration; then the process loads the model, sends Ready, and takes steps
until the socket closes. It sends an error as Failed before it ends; an unexpected one is logged
here too, with its traceback. What is slow to import is imported once the configuration has arrived,
in a fork it was before.
"""

import gc
import logging
import os
import socket
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import NoReturn

import msgspec

from quire.engine.channel import Channel, ChannelClosed
from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.failure_kind import EXPECTED, kind_of, start_failure_of
from quire.engine.imports import import_engine
from quire.engine.messages import EngineFailure, LoadingProgress, Ready
from quire.engine.process_setup import FAILED, prepare_process, set_process_name, set_up_log
from quire.engine.running_record import RunningRecord, RunningRequests
from quire.engine.spawn import Descriptors
from quire.process_age import process_age_s

logger = logging.getLogger(__name__)


def run(fds: Descriptors, imported_since_s: float | None = None) -> None:
    """Run an engine until its socket closes, and end the process if it fails. Where all is imported
    already, the engine was in the making since `imported_since_s` (`time.monotonic`)."""
    set_process_name("quire-engine")
    sock = socket.socket(fileno=fds.socket)
    os.register_at_fork(after_in_child=partial(_close_all, sock, fds))
    channel = Channel(sock)
    try:
        _serve(channel, fds, imported_since_s)
    except ChannelClosed:
        return
    except Exception as error:
        logger.exception("the engine ends")
        with suppress(ChannelClosed):
            channel.send(EngineFailure(f"{type(error).__name__}: {error}", kind_of(error)))
        sys.exit(FAILED)


def _serve(channel: Channel, fds: Descriptors, imported_since_s: float | None) -> None:
    """Load the model of the configuration in the first frame, then run the engine's loop."""

    def report_progress(phase: str, done: int, total: int) -> None:
        channel.send(LoadingProgress(phase, done, total))

    (body,) = channel.receive(wait=True)
    config = msgspec.msgpack.decode(body, type=EngineConfig)
    if config.ring_fd is not None:
        config = replace(config, ring_fd=fds.ring)
    set_up_log(config.tracing)
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
            config,
            on_progress=report_progress,
            clock=time.monotonic,
            began_s=began_s,
            on_rank_lost=partial(_end_at_once, channel),
        )
    except EXPECTED as error:
        channel.send(EngineFailure(str(error), start_failure_of(error)))  # the server logs it
        sys.exit(FAILED)
    with closing(engine):
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection need look at it again
        channel.send(Ready(facts))
        engine.running = RunningRequests(RunningRecord(fds.record))
        EngineLoop(engine, channel).run()


def _end_at_once(channel: Channel, failed: EngineFailure) -> NoReturn:
    """End the process in any thread: others may wait for a rank that is lost."""
    channel.send_last(failed)
    os._exit(FAILED)


def _close_all(sock: socket.socket, fds: Descriptors) -> None:
    """Close the engine's descriptors in a fork: its socket tells the server that it has ended."""
    sock.close()
    os.close(fds.record)
    os.close(fds.ring)


def main() -> None:
    """Run the engine process. The arguments are its file descriptors."""
    prepare_process()
    run(Descriptors(*map(int, sys.argv[1:])))


if __name__ == "__main__":
    main()
