"""Start a server in a process group of its own, await it, and leave nothing behind."""

import os
import shlex
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.peers import Peer
from quire.workbench.bench.processes import stop_group

HOST = "127.0.0.1"

READY_POLL_S = 0.1
MAX_LOG_CHARS = 3000


@dataclass(frozen=True, slots=True)
class Launch:
    """One server to start: a peer, where its program and its model lie, and its own options."""

    label: str
    peer: Peer
    program: str
    model_path: Path
    options: tuple[str, ...]

    def _fill(self, port: int) -> Mapping[str, str | int]:
        cores = sorted(os.sched_getaffinity(0))
        return {
            "program": self.program,
            "model": str(self.model_path),
            "port": port,
            "num_cores": len(cores),
            "core_range": f"{cores[0]}-{cores[-1]}",
        }

    def command(self, port: int) -> list[str]:
        """The command that starts the server on that port."""
        fill = self._fill(port)
        return [*(part.format_map(fill) for part in self.peer.command), *self.options]

    def environment(self, port: int) -> dict[str, str]:
        """Our own environment with the peer's settings over it."""
        fill = self._fill(port)
        own = {name: value.format_map(fill) for name, value in self.peer.environment}
        return {**os.environ, **own}

    def version(self) -> str:
        """The peer's own word on its version, on one line."""
        command = [part.format(program=self.program) for part in self.peer.version_command]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return f"unknown ({type(error).__name__})"
        return " ".join((done.stdout or done.stderr).split())


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is up."""

    launch: Launch
    port: int
    process: subprocess.Popen[bytes]
    log_path: Path

    def check_alive(self) -> None:
        """Stop the comparison, with the log's end, if the server has exited."""
        if self.process.poll() is not None:
            log = self.log_path.read_text(errors="replace")[-MAX_LOG_CHARS:]
            raise SystemExit(f"{self.launch.label} exited; the end of its log:\n{log}")

    def cpu_s(self) -> float:
        """CPU seconds that the server and its children have used so far."""
        total_s = 0.0
        for each in _tree(self.process.pid):
            with suppress(psutil.Error):
                times = each.cpu_times()
                total_s += times.user + times.system
        return total_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile the server and its children take no CPU time at all."""
        stopped = []
        try:
            for each in _tree(self.process.pid):
                with suppress(psutil.Error):
                    each.suspend()
                    stopped.append(each)
            yield
        finally:
            for each in stopped:
                with suppress(psutil.Error):
                    each.resume()

    def resident_gib(self) -> float:
        """Memory of the process tree, shared pages counted once (PSS)."""
        num_bytes = 0
        for each in _tree(self.process.pid):
            with suppress(psutil.Error):
                num_bytes += each.memory_full_info().pss
        return num_bytes / 2**30


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def _is_ready(port: int, health_path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{health_path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _await_ready(server: Server, start_timeout_s: float) -> float:
    """Seconds from the start of the process until its health check answered 200."""
    start_s = time.monotonic()
    while not _is_ready(server.port, server.launch.peer.health_path):
        server.check_alive()
        if time.monotonic() - start_s > start_timeout_s:
            raise SystemExit(f"{server.launch.label} was not ready in {start_timeout_s:.0f} s")
        time.sleep(READY_POLL_S)
    return time.monotonic() - start_s


@contextmanager
def running(launch: Launch, *, log_path: Path, start_timeout_s: float) -> Iterator[Server]:
    """The server, ready to answer; stopped with all its children on the way out."""
    port = free_port()
    command = launch.command(port)
    log_path.write_text(f"$ {shlex.join(command)}\n")
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            env=launch.environment(port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = Server(launch, port, process, log_path)
        print(f"{launch.label}: ready in {_await_ready(server, start_timeout_s):.1f} s", flush=True)
        yield server
    finally:
        stop_group(process)
