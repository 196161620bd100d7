"""Sets up a process of an engine: its log, its name and its end with its parent."""

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from quire.engine.config import LogFormat, TracingConfig
from quire.logs import JsonFormatter
from quire.progress import log_format

LOG_FORMAT = "%(asctime)s %(levelname)s {name}: %(message)s"
FAILED = 1
"""The exit code of a process that has failed."""
PROCESS_NAME = Path("/proc/self/comm")
RANK_NAME = "quire-rank-"
"""The names of the processes of an engine's ranks begin so."""
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that asks for a signal when the parent dies, by linux/prctl.h."""


def prepare_process() -> None:
    """Set up the log and the signals of a process of engines. SIGUSR1 writes the stacks of all
    threads to the log."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO)
    set_up_log(TracingConfig())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end


def set_up_log(config: TracingConfig) -> None:
    """Let the log have the form and the least level that are configured."""
    logging.getLogger().setLevel(config.log_level.upper())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_formatter(config))


def _formatter(config: TracingConfig) -> logging.Formatter:
    if config.log_format is LogFormat.JSON:
        return JsonFormatter(f"quire.{config.log_name}")
    text = LOG_FORMAT.format(name=config.log_name.replace("%", "%%"))
    return logging.Formatter(log_format(sys.stderr, text))


def set_process_name(name: str) -> None:
    """Name this process for `ps` and `top`, which show 15 characters."""
    with suppress(OSError):
        PROCESS_NAME.write_text(name)


def die_with_parent(parent_id: int) -> None:
    """Have the kernel kill this process when the thread that has started it ends, killed too, and
    exit if its parent is not `parent_id` any more. Linux alone does."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_id:
        os._exit(1)


def has_other_threads() -> bool:
    """Return whether this process has other threads, whose locks would stay held in a fork. True if
    the system does not report threads."""
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        return True


def is_main_thread() -> bool:
    """Return whether this is the thread that lives as long as the process."""
    return threading.current_thread() is threading.main_thread()
