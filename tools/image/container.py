"""One container: the image's command as process 1 of its own namespaces, with a read-only root."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

LAUNCH = Path(__file__).with_name("container.sh")
NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts")
USER = 12345
"""One that the image does not know."""
COMMAND_S = 60
STOP_S = 60


@dataclass(frozen=True, slots=True)
class Container:
    """process: what waits for it, outside; pid: its first process, as seen from outside."""

    process: subprocess.Popen[str]
    pid: int
    environment: Mapping[str, str]
    log_path: Path

    def command(self, *words: str, **changed: str) -> list[str]:
        """The words as a command that runs in it, by its user, with some variables changed."""
        enter = ["nsenter", f"--target={self.pid}", "--all", "--root", "--wd"]
        by = [f"--setuid={USER}", "--setgid=0"]
        variables = [f"{k}={v}" for k, v in {**self.environment, **changed}.items()]
        return [*enter, *by, "env", "-i", *variables, *words]

    def runs(self, *words: str, **changed: str) -> bool:
        """True where a command in it exits with 0."""
        command = self.command(*words, **changed)
        return subprocess.run(command, capture_output=True, timeout=COMMAND_S).returncode == 0

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """By SIGTERM; the exit code."""
        psutil.Process(self.pid).terminate()
        return self.process.wait(STOP_S)


@contextmanager
def running(
    root: Path, cache: Path, environment: Mapping[str, str], command: Sequence[str]
) -> Iterator[Container]:
    """A container of `root`, which may write to `cache` alone. It is killed with the block."""
    variables = [f"{k}={v}" for k, v in environment.items()]
    unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child"]
    launch: list[str | Path] = ["sh", LAUNCH, root, cache, str(USER), *variables, *command]
    log_path = cache.with_suffix(".log")
    with log_path.open("w") as log:
        process = subprocess.Popen([*unshare, *launch], stdout=log, stderr=log, text=True)
    with process:
        try:
            children = psutil.Process(process.pid).children
            while not children() and process.poll() is None:
                time.sleep(0.01)
            assert process.poll() is None, f"no container:\n{log_path.read_text()}"
            yield Container(process, children()[0].pid, environment, log_path)
        finally:
            process.kill()
