"""A program in a real pseudo-terminal, and an emulator of the terminal that shows what it wrote."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType

import pyte

WITHIN_S = 60.0
ROWS, COLUMNS = 40, 100
UNSET = ("NO_COLOR", "COLUMNS", "LINES")  # what overrules what the terminal says of itself
QUIRE = (sys.executable, "-m", "quire.server.cli")
CHAT_PROMPT = r"(?m)^>\s*\Z"
"""The last line of a chat that waits for a message. What is typed before may be dropped, and Ctrl-C
be taken by the terminal itself."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class _Screen(pyte.HistoryScreen):
    """A screen that answers what programs ask terminals, such as where the cursor is."""

    def __init__(self, master: int) -> None:
        super().__init__(COLUMNS, ROWS, history=5000, ratio=0.5)
        self._master = master

    def write_process_input(self, data: str) -> None:
        os.write(self._master, data.encode())


class PseudoTerminal:
    """A running program: `raw` is all that it has written, `screen` what a person sees of it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.raw = b""
        self._master = master
        self._screen = _Screen(master)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self._stop_reading, self._told_to_stop = os.pipe()[::-1]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._master, self._told_to_stop], [], [])
            if self._told_to_stop in ready:  # a read that waits would keep the terminal open
                return
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return
            with self._changed:
                self.raw += data
                self._stream.feed(data)
                self._changed.notify_all()

    @property
    def screen(self) -> str:
        """The lines of the screen, and above them those that have left it."""
        with self._changed:
            return self._shown()

    def _shown(self) -> str:
        above = [
            "".join(line[column].data for column in range(self._screen.columns))
            for line in self._screen.history.top
        ]
        return "\n".join(line.rstrip() for line in (*above, *self._screen.display))

    @property
    def visible_screen(self) -> list[str]:
        """The lines of the screen alone."""
        with self._changed:
            return list(self._screen.display)

    def style_of(self, text: str) -> pyte.screens.Char:
        """How the first character of a text on the screen is written."""
        with self._changed:
            for row, line in enumerate(self._screen.display):
                column = line.find(text)
                if column >= 0:
                    return self._screen.buffer[row][column]
        raise AssertionError(f"no {text!r} on the screen:\n{self.screen}")

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, pattern: str, within_s: float = WITHIN_S) -> re.Match[str]:
        """Wait until the screen has the pattern."""
        found: list[re.Match[str]] = []

        def is_there() -> bool:
            found.extend(re.finditer(pattern, self._shown()))
            return bool(found)

        self.wait_until(is_there, pattern, within_s)
        return found[0]

    def wait_until(self, holds: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
        with self._changed:
            held = self._changed.wait_for(holds, within_s)
            shown = self._shown()
        assert held, f"no {what!r} within {within_s} s:\n{shown}"

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size, of which the kernel tells the program by SIGWINCH."""
        with self._changed:
            self._screen.resize(rows, columns)
        _set_size(self._master, rows, columns)

    @property
    def echoes(self) -> bool:
        """Whether the terminal is as a shell wants it: it echoes, and reads by lines."""
        flags = termios.tcgetattr(self._master)[3]
        assert isinstance(flags, int)
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def exit_code(self, within_s: float = WITHIN_S) -> int:
        code = self.process.wait(within_s)
        self._reader.join(5)
        return code

    def hang_up(self) -> None:
        """Close the terminal, as a window that is closed does: the program gets SIGHUP."""
        os.write(self._stop_reading, b"x")
        self._reader.join()
        for each in (self._master, self._stop_reading, self._told_to_stop):
            os.close(each)
        self._master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._master >= 0:
            self.hang_up()


def _set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def quire_in_terminal(
    *arguments: str,
    variables: Mapping[str, str] = NO_VARIABLES,
    command: tuple[str, ...] = QUIRE,
) -> Iterator[PseudoTerminal]:
    """`quire` with these arguments, or another command, with a terminal of its own; it is ended
    with the block."""
    master, slave = pty.openpty()
    _set_size(slave, ROWS, COLUMNS)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_") and k not in UNSET}
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**kept, "TERM": "xterm-256color", **variables},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    terminal = PseudoTerminal(process, master)
    try:
        yield terminal
    finally:
        terminal.close()
