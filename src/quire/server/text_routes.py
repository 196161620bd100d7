"""Models, completions, chat, and the tokenizer."""

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from quire.server.chat_shape import ChatShape
from quire.server.completion_shape import CompletionShape
from quire.server.errors import NOT_FOUND, RequestError
from quire.server.generation import Generation
from quire.server.intake import Intake
from quire.server.limits import check_chat
from quire.server.prompts import decode_tokens, encode_chat, encode_text, texts_of, unread_kwargs
from quire.server.protocol.capabilities import CHAT, COMPLETIONS
from quire.server.protocol.chat import ChatRequest
from quire.server.protocol.completions import CompletionRequest
from quire.server.protocol.parse import parse_object, parse_request, validate
from quire.server.protocol.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.protocol.wire import Detokenized, ModelCard, ModelList, Tokenized
from quire.server.replies import json_reply, read_body
from quire.server.response import GenerationResponse
from quire.server.service import Service, Tools
from quire.server.tenants import arrival_of


class TextRoutes:
    """Everything that needs the engine or the tokenizer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created_s = int(service.sources.now())

    async def models(self, request: Request) -> Response:
        names = self._service.config.served_model_names
        return json_reply(ModelList(tuple(map(self._card, names))))

    async def model(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        self._check_model(name)
        return json_reply(self._card(name))

    def _card(self, name: str) -> ModelCard:
        facts = self._service.engine.facts
        most = None if facts is None else facts.max_model_len
        return ModelCard(name, self._created_s, self._service.config.model_name, most)

    async def completions(self, request: Request) -> Response:
        body, tools = await self._read(request)
        asked, no_effect = parse_request(body, CompletionRequest, COMPLETIONS)
        intake = self._intake(request, asked.model, tools)
        job = await intake.completion(asked, no_effect)
        generation = Generation(job, self._service, tools.tokenizer)
        shape = CompletionShape(job, tools.tokenizer.token_bytes)
        return GenerationResponse(generation, shape, self._service)

    async def chat(self, request: Request) -> Response:
        body, tools = await self._read(request)
        asked, no_effect = parse_request(body, ChatRequest, CHAT)
        intake = self._intake(request, asked.model, tools)
        job = await intake.chat(asked, no_effect)
        generation = Generation(job, self._service, tools.tokenizer)
        shape = ChatShape(job, tools.tokenizer.token_bytes)
        return GenerationResponse(generation, shape, self._service)

    async def tokenize(self, request: Request) -> Response:
        body, tools = await self._read(request)
        fields = parse_object(body)
        if "messages" in fields:
            return await self._tokenize_chat(validate(fields, TokenizeChatRequest), tools)
        asked = validate(fields, TokenizeRequest)
        self._check_model(asked.model)
        token_ids = await encode_text(
            asked.prompt, tools, add_special_tokens=asked.add_special_tokens is not False
        )
        return json_reply(await _tokenized(token_ids, asked.return_token_strs, tools))

    async def _tokenize_chat(self, asked: TokenizeChatRequest, tools: Tools) -> Response:
        self._check_model(asked.model)
        chat = asked.as_chat()
        check_chat(chat)
        token_ids = await encode_chat(chat, tools)
        warnings = unread_kwargs(chat, tools)
        return json_reply(
            await _tokenized(token_ids, asked.return_token_strs, tools),
            headers={"x-quire-warnings": "; ".join(warnings)} if warnings else None,
        )

    async def detokenize(self, request: Request) -> Response:
        body, tools = await self._read(request)
        asked = validate(parse_object(body), DetokenizeRequest)
        self._check_model(asked.model)
        return json_reply(Detokenized(await decode_tokens(tuple(asked.tokens), tools)))

    async def _read(self, request: Request) -> tuple[bytes, Tools]:
        """Not being ready is said before the body is judged, but after it is read: a client that
        still sends would not read the answer."""
        service = self._service
        service.num_reading += 1
        try:
            body = await read_body(request, service.config.max_body_bytes, service.cut_off)
        finally:
            service.num_reading -= 1
        return body, service.tools()

    def _intake(self, request: Request, model: str | None, tools: Tools) -> Intake:
        self._check_model(model)
        name = model or self._service.config.model_name
        return Intake(name, tools, self._service.sources, arrival_of(request))

    def _check_model(self, name: str | None) -> None:
        names = self._service.config.served_model_names
        if name is not None and name not in names:
            raise RequestError(
                f"The model {name!r} does not exist; this server has {', '.join(names)}.",
                param="model",
                code="model_not_found",
                status=NOT_FOUND,
            )


async def _tokenized(
    token_ids: tuple[int, ...], wants_strs: bool | None, tools: Tools
) -> Tokenized:
    strs = tuple(await texts_of(token_ids, tools)) if wants_strs else UNSET
    return Tokenized(len(token_ids), tools.facts.max_model_len, token_ids, strs)
