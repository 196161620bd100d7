"""A `quire serve` that lives as long as this command, and no longer however it ends."""

import asyncio
import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from quire.workbench.bench.processes import LISTENS, SERVE, stop_group
from quire.workbench.bench.server_client import read_json

POLL_S = 0.1
ASK_TIMEOUT_S = 2.0
MAX_LOG_LINES = 12
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that asks for a signal when the parent dies, by linux/prctl.h."""
KEY_VARIABLE, TLS_VARIABLES = "QUIRE_API_KEY", "QUIRE_SSL_"


class ServerEnded(Exception):
    """The server ended; the text is the end of its log."""


class StartupProgress(msgspec.Struct, frozen=True):
    """The progress of the start of a server, as its `/startupz` tells it."""

    phase: str = "starting"
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0


class _Startup(msgspec.Struct):
    status: str
    progress: StartupProgress | None = None


class OwnServer:
    """A server on a free port of this machine that answers to a key of its own."""

    def __init__(self, serve_args: Sequence[str], folder: Path) -> None:
        self.api_key = secrets.token_urlsafe(24)
        self.url = ""
        self._log_path = folder / "server.log"
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *SERVE, *serve_args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**_plain_environment(), KEY_VARIABLE: self.api_key},
                start_new_session=True,  # Ctrl-C is for the answer, not for the server
                preexec_fn=_die_with_parent,
            )

    def check(self) -> None:
        """Raise ServerEnded if it no longer runs."""
        code = self.process.poll()
        if code is not None:
            last = "\n".join(self._log().splitlines()[-MAX_LOG_LINES:])
            raise ServerEnded(f"quire serve ended with {code}:\n{last}")

    def _log(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    async def wait_ready(self, on_progress: Callable[[StartupProgress], None]) -> None:
        """Wait until the models are loaded, and tell how far it is. Raises ServerEnded."""
        async with httpx.AsyncClient(trust_env=False, timeout=ASK_TIMEOUT_S) as http:
            while True:
                self.check()
                found = re.search(LISTENS, self._log())
                if found is not None:
                    self.url = found[1]
                    if self.url.startswith("https:"):
                        raise ServerEnded(
                            "the chat's own server is asked without TLS: leave it out"
                        )
                    progress = await _progress(http, self.url)
                    if progress is None:
                        return
                    on_progress(progress)
                await asyncio.sleep(POLL_S)


async def _progress(http: httpx.AsyncClient, url: str) -> StartupProgress | None:
    """Return how far the start is, None once it is done."""
    try:
        got = await http.get(f"{url}/startupz")
    except httpx.HTTPError:
        return StartupProgress()
    if got.status_code == httpx.codes.OK:
        return None
    told = read_json(got.content, _Startup)
    return (told.progress if told else None) or StartupProgress()


@asynccontextmanager
async def own_server(serve_args: Sequence[str]) -> AsyncIterator[OwnServer]:
    """Start a server with the arguments of `quire serve`, and end it with its engines behind the
    block, whatever ends that."""
    with tempfile.TemporaryDirectory(prefix="quire-chat-") as folder:
        server = OwnServer(serve_args, Path(folder))
        try:
            yield server
        finally:
            stop_group(server.process)


def _plain_environment() -> dict[str, str]:
    """Return the environment without the options of TLS: nobody else asks this server, and its
    certificate would be for another name."""
    return {name: value for name, value in os.environ.items() if not name.startswith(TLS_VARIABLES)}


def _die_with_parent() -> None:
    """Have the kernel end this process when its parent is gone, killed too. Linux alone does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
