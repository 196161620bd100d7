"""Asks servers with OpenAI's chat completions: for their models, and for answers as they come."""

from collections.abc import AsyncGenerator, Mapping

import msgspec

from quire.workbench.bench.replies import Response
from quire.workbench.bench.server_client import read_json, reason_of
from quire.workbench.terminal.event_stream import ServerEvent
from quire.workbench.terminal.server_connection import ServerConnection, ServerFault

DONE = b"[DONE]"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


class PromptDetails(msgspec.Struct, frozen=True):
    """The part of a prompt that was found in a prefix cache."""

    cached_tokens: int | None = None


class ChatUsage(msgspec.Struct, frozen=True):
    """The tokens of a request, as its server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class AnswerPiece(msgspec.Struct, frozen=True):
    """A part of an answer that came in one event."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: ChatUsage | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: ChatUsage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def model_names(connection: ServerConnection) -> tuple[str, ...]:
    """Return the models that the server lists, at least one. Raises ServerFault."""
    models = await connection.get("/v1/models", _Models)
    if models is None or not models.data:
        raise ServerFault("/v1/models lists no model: is this a server with OpenAI's API?")
    return tuple(each.id for each in models.data)


async def stream_chat(
    connection: ServerConnection, body: Mapping[str, object]
) -> AsyncGenerator[AnswerPiece, None]:
    """Yield an answer as it comes. A consumer that stops ends the request in the server too.

    Raises ServerFault, with the server's own message where it gave one.
    """
    content = msgspec.json.encode({**body, **STREAM})
    has_ended = False
    async with connection.events("/v1/chat/completions", content) as events:
        async for event in events:
            if event.data.strip() == DONE:
                return
            piece = _piece(event)
            has_ended = has_ended or piece.finish_reason is not None
            yield piece
    if not has_ended:
        raise ServerFault("the connection ended before the answer did")


def _piece(event: ServerEvent) -> AnswerPiece:
    chunk = read_json(event.data, _Chunk)
    if chunk is None:
        raise ServerFault("the stream holds what is no part of an answer")
    if bytes(chunk.error) != b"null":
        raise ServerFault(reason_of(Response(200, event.data)).removeprefix("200 "))
    if not chunk.choices:
        return AnswerPiece(usage=chunk.usage)
    choice = chunk.choices[0]
    delta = choice.delta or _Delta()
    reasoning = delta.reasoning_content or delta.reasoning or ""
    return AnswerPiece(delta.content or "", reasoning, choice.finish_reason, chunk.usage)
