"""The history of a chat is where it should be, for its owner alone, and bounded."""

import asyncio
import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import History

from quire.workbench.terminal.line_editor import (
    MAX_HISTORY_BYTES,
    NoHistory,
    history_path,
    open_history,
)


def loaded(history: History) -> list[str]:
    """The messages, the newest first."""

    async def gather() -> list[str]:
        return [message async for message in history.load()]

    return asyncio.run(gather())


def test_the_path_is_by_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert history_path({}) == Path("/home/ann/.local/state/quire/chat-history")
    assert history_path({"XDG_STATE_HOME": "relative"}) == history_path({})
    assert history_path({"XDG_STATE_HOME": "/state"}) == Path("/state/quire/chat-history")


def test_messages_of_several_lines_are_kept_for_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "new" / "chat-history"
    history = open_history(path)
    history.append_string("one\ntwo")
    history.append_string("three")
    assert loaded(open_history(path)) == ["three", "one\ntwo"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_large_history_loses_its_older_half_and_no_message_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "chat-history"
    history = open_history(path)
    messages = [f"{number} {'x' * 50_000}\nand more" for number in range(25)]
    for message in messages:
        history.append_string(message)
    assert path.stat().st_size > MAX_HISTORY_BYTES
    kept = loaded(open_history(path))
    assert path.stat().st_size <= MAX_HISTORY_BYTES // 2
    assert 5 < len(kept) < 15
    assert kept == messages[: -len(kept) - 1 : -1]


def test_a_history_that_cannot_be_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NoHistory, match="file/chat-history: "):
        open_history(tmp_path / "file" / "chat-history")
