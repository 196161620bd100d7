"""`quire top`: the live view of a server in a terminal: its blocks as a map, its requests as lanes.

The stream is read again, after a while that grows, when it ends: servers are restarted.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text

from quire.workbench.terminal.live_events import BadEvent, read_event
from quire.workbench.terminal.live_screen import ScreenState, draw
from quire.workbench.terminal.live_state import LiveState
from quire.workbench.terminal.server_connection import ServerConnection, ServerFault
from quire.workbench.terminal.visible_text import visible

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 8.0
PATH = "/v1/live"
LEAST_PAUSE_S = 0.05
"""The view is drawn no more often."""
LEAVE, PAUSE = "q", "p"
FAILED, KILLED_BY = 1, 128
TOO_MANY = 429


@dataclass(frozen=True, slots=True)
class TopOptions:
    """The options of `quire top`; `model` None stands for the only one of the server."""

    url: str
    model: str | None
    api_key: str | None = field(repr=False)


def run_top(options: TopOptions) -> int:
    """Show the live view until the user leaves. Return the exit code."""
    return asyncio.run(_run(options))


async def _run(options: TopOptions) -> int:
    console = Console(highlight=False, markup=False, emoji=False)
    top = Top(console, options.url)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, top.leave, KILLED_BY + number)
    loop.add_signal_handler(signal.SIGWINCH, top.changed.set)
    try:
        async with ServerConnection(options.url, options.api_key) as connection:
            watching = asyncio.ensure_future(top.watch(connection, options.model))
            try:
                with _keys(top.press):
                    return await top.show(watching)
            finally:
                watching.cancel()
    except ServerFault as error:
        console.print(visible(f"quire top: {error}"), style="red", soft_wrap=True)
        return FAILED
    except OSError:  # its terminal may be gone
        if top.exit_code is None:
            raise
        return top.exit_code


class Top:
    """The view of one model. `changed` is set when there is something to draw, or to leave for:
    `exit_code` is then that of the command."""

    def __init__(self, console: Console, url: str) -> None:
        self.changed = asyncio.Event()
        self.exit_code: int | None = None
        self._console = console
        self._url = url
        self._state = LiveState()
        self._frozen: LiveState | None = None
        self._notice = ""

    def leave(self, exit_code: int) -> None:
        """Have the command end."""
        self.exit_code = exit_code
        self.changed.set()

    def press(self, keys: str) -> None:
        """Do what the keys are for; others do nothing."""
        for key in keys.lower():
            if key == LEAVE:
                self.leave(0)
            elif key == PAUSE:
                self._frozen = deepcopy(self._state) if self._frozen is None else None
                self.changed.set()

    async def show(self, watching: "asyncio.Task[None]") -> int:
        """Draw until the user leaves. Return the exit code. Raises ServerFault where the server can
        not be watched."""
        watching.add_done_callback(lambda _: self.changed.set())
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while self.exit_code is None and not watching.done():
                self.changed.clear()
                live.update(self._drawn(), refresh=True)
                await asyncio.sleep(LEAST_PAUSE_S)
                await self.changed.wait()
        if self.exit_code is None:
            await watching
        return self.exit_code or 0

    def _drawn(self) -> Text:
        view = ScreenState(
            self._url,
            self._notice,
            is_paused=self._frozen is not None,
            is_ascii=not self._console.encoding.lower().startswith("utf"),
        )
        width, height = self._console.size
        return draw(self._frozen or self._state, view, width, height)

    async def watch(self, connection: ServerConnection, model: str | None) -> None:
        """Take in what the server tells, for ever. Raises ServerFault where it refuses for good,
        and where it does not answer at first."""
        params = {} if model is None else {"model": model}
        retry_s: float | None = None
        while True:
            try:
                async with connection.events(PATH, params=params) as events:
                    async for event in events:
                        self._state.apply(read_event(event.data))
                        self._notice, retry_s = "", FIRST_RETRY_S
                        self.changed.set()
                fault = "the stream has ended"
            except (ServerFault, BadEvent) as error:
                if _is_final(error, is_first=retry_s is None):
                    raise ServerFault(str(error)) from None
                fault = str(error)
            retry_s = min(2 * (retry_s or FIRST_RETRY_S), LAST_RETRY_S)
            self._notice = f"{fault}; asked again in {retry_s:g} s"
            self.changed.set()
            await asyncio.sleep(retry_s)


def _is_final(error: Exception, *, is_first: bool) -> bool:
    """Return whether asking again would not help: the server refuses for good, or what was asked
    first is no server that could be watched."""
    status = error.status if isinstance(error, ServerFault) else None
    if status is None:
        return is_first
    return 400 <= status < 500 and status != TOO_MANY


@contextmanager
def _keys(on_keys: Callable[[str], object]) -> Iterator[None]:
    """Read keys as they are pressed, without their echo; signals of keys stay."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(descriptor, 1024)
        if not pressed:
            loop.remove_reader(descriptor)
        on_keys(pressed.decode(errors="replace"))

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
