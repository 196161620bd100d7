"""`quire chat` with a server of its own: it lives as long as the chat, however that ends."""

import signal
from contextlib import suppress

import psutil
import pytest

from tests.workbench.terminal.pseudo_terminal import CHAT_PROMPT, PseudoTerminal, quire_in_terminal

SERVE = ("chat", "bundled", "--no-history", "--", "--num-threads", "1")


def server_of(terminal: PseudoTerminal) -> psutil.Process:
    """The `quire serve` of a chat, once it has begun."""
    found: list[psutil.Process] = []

    def has_begun() -> bool:
        for child in psutil.Process(terminal.process.pid).children():
            with suppress(psutil.Error):
                found.extend([child] if "serve" in child.cmdline() else [])
        return bool(found)

    terminal.wait_for("starting quire serve")
    terminal.wait_until(has_begun, "quire serve")
    return found[0]


def test_a_chat_with_the_bundled_model_and_no_process_is_left() -> None:
    with quire_in_terminal(*SERVE) as terminal:
        server = server_of(terminal)
        terminal.wait_for("loading: ")
        terminal.wait_for(r"quire-bundled at http://127\.0\.0\.1:\d+; /help")
        engines = server.children(recursive=True)
        terminal.wait_for(CHAT_PROMPT)
        terminal.send("/set max_tokens 4\r")
        terminal.wait_for("max_tokens is 4")
        terminal.wait_for(CHAT_PROMPT)
        terminal.send("Who art thou?\r")
        terminal.wait_for(r"\d output tokens")
        terminal.wait_for(CHAT_PROMPT)
        terminal.send("\x04")
        assert terminal.exit_code() == 0
    assert engines
    assert not any(each.is_running() for each in (server, *engines))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_server_is_left_by_a_chat_that_a_signal_ends(number: signal.Signals) -> None:
    with quire_in_terminal(*SERVE) as terminal:
        server = server_of(terminal)
        terminal.process.send_signal(number)
        code = terminal.exit_code()
        assert code == (-number if number is signal.SIGKILL else 128 + number)
        _, alive = psutil.wait_procs([server], 20)
        assert alive == []


def test_no_server_is_left_by_a_terminal_that_is_closed() -> None:
    with quire_in_terminal(*SERVE) as terminal:
        server = server_of(terminal)
        terminal.hang_up()
        assert terminal.exit_code() == 128 + signal.SIGHUP
        _, alive = psutil.wait_procs([server], 20)
        assert alive == []


def test_a_server_that_does_not_start_is_told_with_its_own_words() -> None:
    with quire_in_terminal("chat", "/no/such/model") as terminal:
        assert terminal.exit_code() == 1
        assert "quire serve ended with" in terminal.screen and "/no/such/model" in terminal.screen
