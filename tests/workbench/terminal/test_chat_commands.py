"""Commands change the conversation, and what the next request holds."""

import json
import stat
from pathlib import Path

import pytest

from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.fields import GenerationFields
from quire.server.cli.terminal.chat import SAMPLING
from quire.workbench.terminal.chat_commands import COMMANDS, WrongCommand, run_command
from quire.workbench.terminal.conversation import Conversation
from quire.workbench.terminal.sampling_options import rules_of_schema

RULES = rules_of_schema(GenerationFields.model_json_schema(), SAMPLING)


@pytest.fixture
def conversation() -> Conversation:
    talk = Conversation("m", "Be brief.")
    talk.ask("Who?")
    talk.answer("I.")
    return talk


def run(line: str, conversation: Conversation) -> str:
    return run_command(line, conversation, RULES).said


def roles(conversation: Conversation) -> list[tuple[str, str]]:
    messages = conversation.body("Next?")["messages"]
    assert isinstance(messages, list)
    return [(each["role"], each["content"]) for each in messages]


def test_a_request_holds_all_that_was_said(conversation: Conversation) -> None:
    assert roles(conversation) == [
        *[("system", "Be brief."), ("user", "Who?"), ("assistant", "I."), ("user", "Next?")]
    ]


def test_system_and_clear(conversation: Conversation) -> None:
    run("/system Speak in  verse.", conversation)
    run("/clear", conversation)
    assert roles(conversation) == [("system", "Speak in  verse."), ("user", "Next?")]
    run("/system", conversation)
    assert roles(conversation) == [("user", "Next?")]


def test_options_are_fields_of_the_request_until_they_are_left_out(
    conversation: Conversation,
) -> None:
    run("/set temperature 0.5", conversation)
    run("/set max_tokens=7", conversation)
    body = conversation.body("Next?")
    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)
    ChatRequest.model_validate(body)
    assert "temperature 0.5, max_tokens 7" in run("/show", conversation)
    run("/set temperature", conversation)
    assert "temperature" not in conversation.body()


def test_set_alone_lists_the_options(conversation: Conversation) -> None:
    assert [line.partition(":")[0] for line in run("/set", conversation).splitlines()] == list(
        SAMPLING
    )


def test_retry_asks_again_and_forgets_the_answer(conversation: Conversation) -> None:
    assert run_command("/retry", conversation, RULES).question == "Who?"
    assert roles(conversation) == [("system", "Be brief."), ("user", "Next?")]


def test_retry_after_a_message_without_an_answer_keeps_what_was_said_before(
    conversation: Conversation,
) -> None:
    conversation.ask("Who?")
    conversation.answer("")
    assert run_command("/retry", conversation, RULES).question == "Who?"
    assert ("assistant", "I.") in roles(conversation)


def test_a_saved_conversation_is_a_request_of_the_api(
    conversation: Conversation, tmp_path: Path
) -> None:
    path = tmp_path / "chat.json"
    run("/set seed 3", conversation)
    assert str(path) in run(f"/save {path}", conversation)
    saved = json.loads(path.read_bytes())
    assert saved == conversation.body()
    ChatRequest.model_validate(saved)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(WrongCommand, match="is there already"):
        run(f"/save {path}", conversation)
    with pytest.raises(WrongCommand, match="No such file"):
        run(f"/save {tmp_path}/none/chat.json", conversation)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/sytem x", "no command /sytem; there are /system, /set"),
        ("/", "no command /;"),
        ("/set temprature 1", "no option 'temprature'; there are max_tokens, temperature"),
        ("/set temprature", "no option 'temprature'"),
        ("/set temperature 3", "temperature is a number of at least 0 and at most 2, not '3'"),
        ("/clear all", "/clear takes nothing behind it"),
        ("/save", "/save needs a file"),
    ],
)
def test_a_wrong_command_is_refused_with_what_would_be_right(
    line: str, said: str, conversation: Conversation
) -> None:
    before = conversation.body()
    with pytest.raises(WrongCommand) as refused:
        run_command(line, conversation, RULES)
    assert said in str(refused.value)
    assert conversation.body() == before


def test_help_tells_of_every_command(conversation: Conversation) -> None:
    said = run("/help", conversation)
    assert all(f"/{name}" in said for name in COMMANDS)
    assert run_command("/quit", conversation, RULES).leaves
