"""`quire chat`: a conversation in a terminal with a model of any server in OpenAI's style.

It reads a message, sends all that was said, and writes the answer as it comes. Ctrl-C stops an
answer by closing its connection, which ends the request in the server too.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from prompt_toolkit import PromptSession
from prompt_toolkit.history import History
from rich.console import Console
from rich.text import Text

from quire.workbench.terminal.answer_view import AnswerView, without_echo
from quire.workbench.terminal.chat_client import model_names, stream_chat
from quire.workbench.terminal.chat_commands import COMMANDS, SLASH, WrongCommand, run_command
from quire.workbench.terminal.conversation import Conversation
from quire.workbench.terminal.line_editor import NoHistory, build_editor, history_path, open_history
from quire.workbench.terminal.own_server import OwnServer, ServerEnded, StartupProgress, own_server
from quire.workbench.terminal.sampling_options import SamplingRules
from quire.workbench.terminal.server_connection import ServerConnection, ServerFault
from quire.workbench.terminal.visible_text import on_one_line, visible

FAILED = 1
KILLED_BY = 128
MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options of `quire chat`.

    url: None stands for a server of its own, started with `serve_args`.
    model: None stands for the first that the server lists.
    """

    url: str | None
    serve_args: tuple[str, ...]
    model: str | None
    api_key: str | None = field(repr=False)
    system: str
    keeps_history: bool


def run_chat(options: ChatOptions, rules: SamplingRules, environ: Mapping[str, str]) -> int:
    """Talk until the user leaves. Return the exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal may not know all characters
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return asyncio.run(_run(options, rules, environ))


async def _run(options: ChatOptions, rules: SamplingRules, environ: Mapping[str, str]) -> int:
    screen = Screen(Console(highlight=False, markup=False, emoji=False))
    signals = Signals()
    try:
        async with _opened(options, screen) as opened:
            model = await _model(opened.connection, options.model)
            history = _history(screen, environ) if options.keeps_history else None
            signals.on_interrupt = None
            screen.note(f"{model} at {opened.connection.url}; /help lists commands, Ctrl-D leaves")
            conversation = Conversation(model, options.system)
            await Chat(opened, screen, signals, conversation).talk(rules, history)
    except (asyncio.CancelledError, OSError):  # its terminal may be gone
        if signals.ended_by is None:
            raise
        return KILLED_BY + signals.ended_by
    except (ServerEnded, ServerFault) as error:
        screen.fault(f"quire chat: {error}")
        return FAILED
    return 0


class Screen:
    """Lines beside the answers, whose text may be that of strangers."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, text: str) -> None:
        """Write a text of this program."""
        self.console.print(visible(text), style="dim", soft_wrap=True)

    def fault(self, text: str) -> None:
        """Write a text that tells what went wrong."""
        self.console.print(visible(text), style="red", soft_wrap=True)


class Signals:
    """The signals of a chat, which is the running task. SIGINT does what `on_interrupt` does, and
    nothing where that is None; it ends a chat that has not begun, as the others end any."""

    def __init__(self) -> None:
        self.ended_by: int | None = None
        self.on_interrupt: Callable[[], object] | None = lambda: self._end(signal.SIGINT)
        chat = asyncio.current_task()
        assert chat is not None
        self._chat = chat
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for each in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(each, self._end, each)

    def _interrupt(self) -> None:
        if self.on_interrupt is not None:
            self.on_interrupt()

    def _end(self, number: int) -> None:
        self.ended_by = number
        self._chat.cancel()


class ConnectedServer(NamedTuple):
    """A server that can be asked, and its process where it is this chat's own."""

    connection: ServerConnection
    server: OwnServer | None


@asynccontextmanager
async def _opened(options: ChatOptions, screen: Screen) -> AsyncIterator[ConnectedServer]:
    """Open a connection to the server that was named, or to one that is started for this chat.
    Raises ServerEnded."""
    if options.url is not None:
        async with ServerConnection(options.url, options.api_key) as connection:
            yield ConnectedServer(connection, None)
        return
    async with own_server(options.serve_args) as server:
        with screen.console.status(Text("starting quire serve")) as status:

            def show(progress: StartupProgress) -> None:
                how_far = f" {progress.done}/{progress.total}" if progress.total else ""
                phase = f"{progress.phase}{how_far}, {progress.elapsed_s:.0f} s"
                status.update(Text(on_one_line(f"loading: {phase}", MAX_NAME_CHARS)))

            await server.wait_ready(show)
        connection = ServerConnection(server.url, server.api_key, uses_proxies=False)
        async with connection:
            yield ConnectedServer(connection, server)


async def _model(connection: ServerConnection, wanted: str | None) -> str:
    """Return the model to ask for. Raises ServerFault where it is not served."""
    names = await model_names(connection)
    if wanted is not None and wanted not in names:
        raise ServerFault(f"{connection.url} serves no model {wanted!r}, but {', '.join(names)}")
    return wanted or names[0]


def _history(screen: Screen, environ: Mapping[str, str]) -> History | None:
    try:
        return open_history(history_path(environ))
    except NoHistory as error:
        screen.fault(f"earlier messages are not kept: {error}")
        return None


class Chat:
    """A conversation that goes on until the user leaves."""

    def __init__(
        self, opened: ConnectedServer, screen: Screen, signals: Signals, conversation: Conversation
    ) -> None:
        self._connection, self._server = opened
        self._screen = screen
        self._signals = signals
        self._conversation = conversation

    async def talk(self, rules: SamplingRules, history: History | None) -> None:
        """Read messages and commands, and answer them. Raises ServerEnded."""
        editor = build_editor(history, [SLASH + name for name in COMMANDS])
        while (line := await self._read(editor)) is not None:
            question: str | None = line
            if line.startswith(SLASH):
                try:
                    outcome = run_command(line, self._conversation, rules)
                except WrongCommand as error:
                    self._screen.fault(str(error))
                    continue
                if outcome.leaves:
                    return
                if outcome.said:
                    self._screen.note(outcome.said)
                question = outcome.question
            if question is not None and question.strip():
                await self._answer(question)

    async def _read(self, editor: PromptSession[str]) -> str | None:
        """Return what the user has written, None if that is the end."""
        while True:
            try:
                return await editor.prompt_async(handle_sigint=False)
            except KeyboardInterrupt:
                self._screen.note("Ctrl-D or /quit leaves")
            except EOFError:
                return None

    async def _answer(self, question: str) -> None:
        """Ask for an answer and show it, until it ends or is stopped. Raises ServerEnded."""
        body = self._conversation.ask(question)
        view = AnswerView(self._screen.console, time.monotonic)
        answering = asyncio.ensure_future(self._ask(body, view))
        self._signals.on_interrupt = answering.cancel
        how, fault = "", None
        try:
            with without_echo():
                await answering
        except asyncio.CancelledError:
            if self._signals.ended_by is not None:
                raise
            how = "stopped"
        except ServerFault as error:
            how, fault = "broken off", error
        finally:
            self._signals.on_interrupt = None
        view.end(how)
        self._conversation.answer(view.text)
        if fault is not None:
            self._screen.fault(str(fault))
            if self._server is not None:
                self._server.check()

    async def _ask(self, body: Mapping[str, object], view: AnswerView) -> None:
        async with aclosing(stream_chat(self._connection, body)) as pieces:
            async for piece in pieces:
                view.take(piece)
