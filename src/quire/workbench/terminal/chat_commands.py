"""The commands of a chat: lines that begin with a slash."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from quire.workbench.terminal.conversation import Conversation
from quire.workbench.terminal.sampling_options import SamplingRules, WrongOption

SLASH = "/"


class CommandOutcome(NamedTuple):
    """The effect of a command beside that on the conversation.

    said: text for people; may hold text of strangers.
    question: a message to send.
    """

    said: str = ""
    question: str | None = None
    leaves: bool = False


class WrongCommand(Exception):
    """A command cannot be run; the text says what would be right."""


class Command(NamedTuple):
    """A command: its arguments and effect in words, and what it does with them."""

    arguments: str
    help: str
    run: Callable[[Conversation, SamplingRules, str], CommandOutcome]


def run_command(line: str, conversation: Conversation, rules: SamplingRules) -> CommandOutcome:
    """Run the command of a line that begins with a slash. Raises WrongCommand."""
    name, _, argument = line.removeprefix(SLASH).strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise WrongCommand(
            f"there is no command /{name}; there are /{', /'.join(COMMANDS)}. A message that "
            "begins with a slash is written with a space before it"
        )
    if argument and not command.arguments:
        raise WrongCommand(f"/{name} takes nothing behind it")
    try:
        return command.run(conversation, rules, argument.strip())
    except WrongOption as error:
        raise WrongCommand(str(error)) from None


def _system(conversation: Conversation, rules: SamplingRules, text: str) -> CommandOutcome:
    conversation.system = text
    return CommandOutcome("the system prompt is set" if text else "there is no system prompt")


def _set(conversation: Conversation, rules: SamplingRules, argument: str) -> CommandOutcome:
    if not argument:
        return CommandOutcome("\n".join(f"{name}: {rule}" for name, rule in rules.rules.items()))
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if value.strip():
        conversation.options[name] = rules.read(name, value.strip())
        return CommandOutcome(f"{name} is {conversation.options[name]}")
    rules.rule(name)
    conversation.options.pop(name, None)
    return CommandOutcome(f"{name} is left to the server")


def _show(conversation: Conversation, rules: SamplingRules, argument: str) -> CommandOutcome:
    options = [f"{name} {value}" for name, value in conversation.options.items()]
    lines = (
        f"model: {conversation.model}",
        f"system prompt: {conversation.system or 'none'}",
        f"options: {', '.join(options) or 'left to the server'}",
        f"said so far: {len(conversation.turns)} messages with their answers",
    )
    return CommandOutcome("\n".join(lines))


def _clear(conversation: Conversation, rules: SamplingRules, argument: str) -> CommandOutcome:
    conversation.clear()
    return CommandOutcome("a new conversation; the system prompt and the options stay")


def _retry(conversation: Conversation, rules: SamplingRules, argument: str) -> CommandOutcome:
    question = conversation.take_back()
    if question is None:
        raise WrongCommand("there is no message to send again")
    return CommandOutcome(question=question)


def _save(conversation: Conversation, rules: SamplingRules, argument: str) -> CommandOutcome:
    if not argument:
        raise WrongCommand("/save needs a file: /save chat.json")
    path = Path(argument).expanduser()
    content = msgspec.json.format(msgspec.json.encode(conversation.body())) + b"\n"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise WrongCommand(f"{path} is there already: name another file") from None
    except OSError as error:
        raise WrongCommand(f"cannot write {path}: {error.strerror}") from None
    return CommandOutcome(f"saved {len(conversation.turns)} messages with their answers: {path}")


def _help(conversation: Conversation, rules: SamplingRules, argument: str) -> CommandOutcome:
    usages = {f"/{name} {each.arguments}".rstrip(): each.help for name, each in COMMANDS.items()}
    return CommandOutcome(
        "\n".join(f"{usage:<22} {text}" for usage, text in (usages | dict(KEYS)).items())
    )


def _quit(conversation: Conversation, rules: SamplingRules, argument: str) -> CommandOutcome:
    return CommandOutcome(leaves=True)


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "system": Command("[TEXT]", "set the system prompt; without TEXT there is none", _system),
        "set": Command("[NAME [VALUE]]", "set an option; alone it lists them", _set),
        "show": Command("", "show model, system prompt and options", _show),
        "clear": Command("", "begin a new conversation", _clear),
        "retry": Command("", "send the last message again", _retry),
        "save": Command("FILE", "write the conversation as a request of the API", _save),
        "help": Command("", "show this", _help),
        "quit": Command("", "leave", _quit),
    }
)
KEYS: Mapping[str, str] = MappingProxyType(
    {
        "Alt-Enter, or \\ Enter": "begin a new line of the message",
        "Ctrl-C": "stop the answer; what came of it stays in the conversation",
        "Ctrl-D": "leave",
        "Up, Ctrl-R": "earlier messages",
    }
)
