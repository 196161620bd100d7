"""Reads messages of several lines from a terminal, with editing, completion and a history that
outlasts the run.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT = "> "
CONTINUED = "… "
BACKSLASH = "\\"
MAX_HISTORY_BYTES = 2**20


class NoHistory(Exception):
    """The file of the history cannot be used; the text says why."""


def history_path(environ: Mapping[str, str]) -> Path:
    """Return where earlier messages are kept, by the XDG base directories."""
    given = environ.get("XDG_STATE_HOME", "")
    state = Path(given) if Path(given).is_absolute() else Path.home() / ".local/state"
    return state / "quire" / "chat-history"


def open_history(path: Path) -> History:
    """Return the history of a file, which its owner alone may read, and whose older half goes when
    it has grown large. Raises NoHistory."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
        if path.stat().st_size > MAX_HISTORY_BYTES:
            kept = path.read_bytes()[-MAX_HISTORY_BYTES // 2 :]
            path.write_bytes(kept[kept.find(b"\n\n#") + 1 :])
    except OSError as error:
        raise NoHistory(f"{path}: {error.strerror}") from None
    return FileHistory(str(path))


def build_editor(history: History | None, commands: Iterable[str]) -> PromptSession[str]:
    """Return what reads messages. `history` is None where earlier messages of this run will do."""
    return PromptSession(
        PROMPT,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=_continued,
        history=history or InMemoryHistory(),
        completer=WordCompleter(sorted(commands), sentence=True),
        complete_while_typing=False,
        enable_history_search=False,
        mouse_support=False,
    )


def _continued(width: int, line_number: int, is_soft_wrap: int) -> StyleAndTextTuples:
    return [("", " " * width if is_soft_wrap else CONTINUED)]


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        """Send the message, but after a backslash at its end begin a new line in its place."""
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith(BACKSLASH):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    return keys
