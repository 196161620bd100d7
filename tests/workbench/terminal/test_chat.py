"""`quire chat` in a pseudo-terminal, with servers that run already."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest

from tests.server.served import Served, eventually, plain_config, serving
from tests.workbench.terminal.answering_server import Answers, answering_server
from tests.workbench.terminal.pseudo_terminal import CHAT_PROMPT, PseudoTerminal, quire_in_terminal

CTRL_C, CTRL_D, UP, ALT_ENTER, TAB = "\x03", "\x04", "\x1b[A", "\x1b\r", "\t"
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}


@contextmanager
def chatting(url: str, *flags: str, state: Path | None = None) -> Iterator[PseudoTerminal]:
    """A chat that waits for the first message."""
    history = ("--no-history",) if state is None else ()
    variables = {"XDG_STATE_HOME": str(state)} if state else {}
    command = ("chat", url, *history, *flags)
    with quire_in_terminal(*command, variables=variables) as terminal:
        terminal.wait_for(r"/help lists commands")
        terminal.wait_for(CHAT_PROMPT)
        yield terminal


def say(terminal: PseudoTerminal, message: str) -> str:
    """Send a message; what the screen has once it was answered."""
    terminal.send(f"{message}\r")
    terminal.wait_for(rf"(?m)^> {re.escape(message)}$")
    terminal.wait_for(CHAT_PROMPT)
    return terminal.screen


def leave(terminal: PseudoTerminal) -> None:
    terminal.wait_for(CHAT_PROMPT)
    terminal.send(CTRL_D)
    assert terminal.exit_code() == 0
    assert terminal.echoes


def contents(body: dict[str, object]) -> list[str]:
    messages = body["messages"]
    assert isinstance(messages, list)
    return [each["content"] for each in messages]


def test_a_conversation_with_a_server_of_another_make() -> None:
    answers = Answers([{"content": "Well"}, {"content": " met."}, USAGE])
    with answering_server(answers) as url, chatting(url, "--system", "Be kind.") as terminal:
        screen = say(terminal, "Who goes there?")
        assert "Well met.\n" in screen
        assert "9 prompt tokens, 0 of them cached · 3 output tokens" in screen
        assert re.search(r"first token after \d+\.\d\d s", screen)
        say(terminal, "/set temperature 0.5")
        say(terminal, "/system")
        say(terminal, "Where?")
        leave(terminal)
    first, second = answers.asked
    assert contents(first) == ["Be kind.", "Who goes there?"]
    assert contents(second) == ["Who goes there?", "Well met.", "Where?"]
    assert (second["temperature"], second["model"], second["stream"]) == (0.5, "stranger", True)
    assert answers.keys == [None] * 3


def test_messages_of_several_lines_and_of_earlier_chats(tmp_path: Path) -> None:
    answers = Answers()
    with answering_server(answers) as url:
        with chatting(url, state=tmp_path) as terminal:
            terminal.send(f"one{ALT_ENTER}two\\\rthree\r")
            terminal.wait_for("Well met")
            leave(terminal)
        (file,) = tmp_path.rglob("chat-history")
        assert file.stat().st_mode & 0o077 == 0
        with chatting(url, state=tmp_path) as terminal:
            terminal.send(UP)
            terminal.wait_for("three")
            terminal.send("!\r")
            terminal.wait_for("Well met")
            leave(terminal)
    assert [contents(body) for body in answers.asked] == [["one\ntwo\nthree"], ["one\ntwo\nthree!"]]


def test_a_hostile_answer_reaches_the_terminal_as_text_alone() -> None:
    attacks = [
        "\x1b]52;c;aGVsbG8=\x07",
        "\x1b[2J\x1b[31m",
        "\x9b5n",
        "\u202eabc",
        "a\rb",
        " [red]:heart:",
    ]
    deltas = [{"reasoning_content": "\x1b]0;pwned\x07"}, *({"content": each} for each in attacks)]
    refusal = (400, '{"error": {"message": "no \\u001b[31mway\\u0007"}}')
    with answering_server(Answers(deltas, models=["bad\x1b[7mname"])) as url:
        with chatting(url) as terminal:
            screen = say(terminal, "Attack.")
            leave(terminal)
    shown = "<U+001B>]52;c;aGVsbG8=<U+0007><U+001B>[2J<U+001B>[31m<U+009B>5n<U+202E>abc"
    assert f"{shown}a<U+000D>b [red]:heart:" in "".join(screen.splitlines())
    assert "bad<U+001B>[7mname" in screen and "<U+001B>]0;pwned<U+0007>" in screen
    for sent in (b"\x1b]52", b"\x1b[2J\x1b[31m", "\x9b".encode(), "\u202e".encode(), b"\x1b]0;"):
        assert sent not in terminal.raw
    with answering_server(Answers(refusal=refusal)) as url, chatting(url) as terminal:
        assert "400 no <U+001B>[31mway<U+0007>" in say(terminal, "Hello?")


def test_reasoning_is_dim_and_apart_from_the_answer() -> None:
    deltas = [{"reasoning_content": "Let me think."}, {"content": "Forty-two."}]
    with answering_server(Answers(deltas)) as url, chatting(url) as terminal:
        assert "Let me think.\n\nForty-two.\n" in say(terminal, "What is it?")
        assert terminal.style_of("Let me").italics
        assert not terminal.style_of("Forty-two").italics


def test_faults_of_a_server_are_told_and_the_conversation_goes_on() -> None:
    answers = Answers([{"content": "Half"}, {"error": {"message": "the engine died"}}])
    with answering_server(answers) as url, chatting(url) as terminal:
        screen = say(terminal, "Once.")
        assert "Half\n" in screen and "broken off" in screen and "the engine died" in screen
        answers.events, answers.has_end = [{"content": "Cut"}], False
        assert "the connection ended before the answer did" in say(terminal, "Twice.")
        answers.refusal = (429, '{"error": {"message": "too many requests: wait 3 s"}}')
        assert "429 too many requests: wait 3 s" in say(terminal, "Thrice.")
        answers.events, answers.has_end, answers.refusal = [{"content": "At last."}], True, None
        say(terminal, "/retry")
        assert "no command /foo; there are /system" in say(terminal, "/foo")
        leave(terminal)
    assert contents(answers.asked[-1]) == ["Once.", "Half", "Twice.", "Cut", "Thrice."]


def test_commands_are_completed_and_unfinished_lines_dropped() -> None:
    answers = Answers()
    with answering_server(answers) as url, chatting(url) as terminal:
        terminal.send(f"/sh{TAB}")
        terminal.wait_for("(?m)^> /show$")
        terminal.send("\r")
        terminal.wait_for("system prompt: none")
        terminal.wait_for(CHAT_PROMPT)
        terminal.send(f"never sent{CTRL_C}")
        terminal.wait_for("Ctrl-D or /quit leaves")
        terminal.wait_for(CHAT_PROMPT)
        terminal.send("/quit\r")
        assert terminal.exit_code() == 0
    assert answers.asked == []


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(plain_config()) as running:
        yield running


def test_ctrl_c_stops_the_answer_in_the_engine_and_keeps_the_conversation(served: Served) -> None:
    def slowly(_: object) -> Iterator[int]:
        yield from repeat(100, 20)
        served.engine.may_step.clear()
        yield from repeat(100)

    served.engine.script = slowly
    with chatting(served.url) as terminal:
        terminal.send("Go on and on.\r")
        terminal.wait_until(lambda: served.engine.num_unfinished == 1, "a request")
        assert eventually(lambda: not served.engine.may_step.is_set())
        terminal.wait_for(r"(?s)Go on and on.\n\S+")
        assert not terminal.echoes
        terminal.send(CTRL_C)
        terminal.wait_for("stopped")
        assert eventually(lambda: len(served.engine.aborted) == 1)
        served.do(served.engine.may_step.set)
        terminal.wait_for(CHAT_PROMPT)
        screen = say(terminal, "/set temperature 2.5")
        assert "temperature is a number of at least 0 and at most 2, not '2.5'" in screen
        say(terminal, "/set max_tokens 3")
        assert "3 output tokens" in say(terminal, "Go on.")
        leave(terminal)
    first, second = (len(each.prompt_token_ids) for each in served.engine.submitted)
    assert second > first + 10  # it has what was said before that was stopped


def test_a_server_that_does_not_answer_is_told() -> None:
    with quire_in_terminal("chat", "http://127.0.0.1:9") as terminal:
        assert terminal.exit_code() == 1
        assert "http://127.0.0.1:9 does not answer" in terminal.screen


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    with answering_server(Answers(models=["a", "b"])) as url:
        with quire_in_terminal("chat", url, "--model", "c") as terminal:
            assert terminal.exit_code() == 1
            assert "serves no model 'c', but a, b" in terminal.screen


def test_a_signal_ends_the_chat_and_leaves_the_terminal_as_it_was() -> None:
    with answering_server(Answers()) as url, chatting(url) as terminal:
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.exit_code() == 128 + signal.SIGTERM
        assert terminal.echoes
