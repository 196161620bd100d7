"""A listening socket that outlives the servers on it, and servers that are handed it as systemd
hands one to a service.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.e2e.server_process import READY_WITHIN_S, STOP_WITHIN_S

FLAGS = ("--num-threads", "1", "--dtype", "float32", "--shutdown-timeout", "60")
HAND_OVER = """
import os, sys
descriptor, *command = sys.argv[1:]
os.dup2(int(descriptor), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "quire"}
os.execv(command[0], command)
"""


class HeldServer:
    """A server on the held socket; `told` is what it has told its manager."""

    def __init__(
        self, process: subprocess.Popen[str], manager: socket.socket, log_path: Path
    ) -> None:
        self.process = process
        self.told: list[str] = []
        self._log_path = log_path
        self._manager = manager
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with self._manager:
            while self.process.returncode is None:
                with suppress(TimeoutError):
                    self.told += self._manager.recv(65536).decode().split("\n")

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_told(self, line: str, within_s: float = READY_WITHIN_S) -> None:
        """Return once it has told its manager this line, or one that begins so: of two states that
        follow each other quickly it tells the second."""
        deadline_s = time.monotonic() + within_s
        while not any(each.startswith(line) for each in list(self.told)):
            assert time.monotonic() < deadline_s, f"{line} was not told:\n{self.log()}"
            assert self.process.poll() is None, f"the server has ended:\n{self.log()}"
            time.sleep(0.01)

    def stop(self) -> int:
        """By SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(60 + STOP_WITHIN_S)


class SocketHolder:
    """Holds a socket that listens on `port`; it accepts nothing itself."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4096))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._stack = stack
        self._num_started = 0

    def start(self, *flags: str) -> HeldServer:
        """Start a server on the socket."""
        self._num_started += 1
        name = self._folder / f"server-{self._num_started}"
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(f"{name}.notify")
        manager.settimeout(0.1)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        environ |= {"QUIRE_MODEL": "bundled"}
        environ |= {"NOTIFY_SOCKET": f"{name}.notify", "WATCHDOG_USEC": "1000000"}
        descriptor = self._listener.fileno()
        serve = (sys.executable, "-m", "quire.server.cli", "serve", *FLAGS, *flags)
        log = self._stack.enter_context(open(f"{name}.log", "w"))
        process = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, str(descriptor), *serve],
            pass_fds=(descriptor,),
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
            env=environ,
        )
        self._stack.callback(_end, process)
        return HeldServer(process, manager, Path(f"{name}.log"))


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()  # its engine ends with the socket between them
    process.wait(STOP_WITHIN_S)


@contextmanager
def held_socket(folder: Path) -> Iterator[SocketHolder]:
    """Hold a socket; the servers on it end with the block."""
    with ExitStack() as stack:
        yield SocketHolder(folder, stack)
