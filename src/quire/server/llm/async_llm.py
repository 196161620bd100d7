"""A model in a Python program: the engine in a process of its own, as a server has it, without
HTTP. Bodies of requests go the way of the API's, so that what is checked, cut and said is the same.
"""

import asyncio
import json
import os
import sys
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias

from quire.engine.config import TOY_MODEL
from quire.engines.opener import opener
from quire.engines.process.engine_starter import EngineStarter
from quire.server.apis.embeddings.parser import parse_embedding
from quire.server.apis.openai.inputs import parse_chat, parse_completion
from quire.server.app.app import build_service
from quire.server.cli.option import ConfigSection
from quire.server.cli.options import OPTIONS
from quire.server.cli.settings import as_flag, read_config
from quire.server.config import InvalidOption, ServerConfig
from quire.server.generation.context import RequestContext
from quire.server.generation.generation_stream import GenerationStream, IndexedDelta
from quire.server.generation.input_processor import InputProcessor
from quire.server.generation.output_delta import GatheredOutput
from quire.server.generation.parsed_input import InputParser
from quire.server.generation.service import Service
from quire.server.llm.outputs import Chunk, RequestOutput, chunk_of, output_of
from quire.server.llm.sampling_params import SamplingParams
from quire.server.models.model_use import ModelUse
from quire.server.models.served_model import ServingState
from quire.server.observability.metrics import FinishReason
from quire.server.sources import Sources
from quire.server.tenancy.tenants import EVERYONE, IncomingRequest

AHEAD = 16
"""So many requests more than run at once are handed to the engine."""
POLL_S = 0.1
UNGUARDED = (
    "A program's file is run once more by each process that reads large prompts: keep what it does "
    "under `if __name__ == '__main__':`"
)
OF_A_SERVER = frozenset((ConfigSection.SERVER, ConfigSection.RESOLVED))

Prompt: TypeAlias = str | Sequence[int]
Message: TypeAlias = Mapping[str, object]
OnProgress: TypeAlias = Callable[[str, int, int], None]


class StartError(RuntimeError):
    """The model cannot be served; the text says why, as the log of a server would."""


class AsyncLLM:
    """A model whose methods are coroutines; `open` it inside a running event loop, and `close` it.

    `options` are those of `quire serve` for models and engines, by their names with `_`. Raises
    `InvalidOption` for others.
    """

    def __init__(self, model: str, **options: object) -> None:
        if "__main__" not in sys.modules:  # anyio's worker runs the program's file as it begins
            raise StartError(UNGUARDED)
        self._config = _config_of(model, options)
        self._service: Service | None = None
        self._slots = asyncio.Semaphore(AHEAD)

    async def open(self, on_progress: OnProgress | None = None) -> None:
        """Start the engine, and return once it is ready; `on_progress` gets phase, done and total.
        Raises StartError."""
        sources = Sources(clock=time.monotonic, now=time.time, random_bytes=os.urandom)
        engine = self._config.models[0].engine
        starter = EngineStarter(has_standby=False, runs_own_code=engine.model.trust_remote_code)
        service = build_service(self._config, opener(self._config.supervision, starter), sources)
        starting = asyncio.create_task(service.start())
        model = service.default_model
        while not starting.done():
            await asyncio.wait({starting}, timeout=POLL_S)
            if on_progress is not None:
                on_progress(*model.engine.progress)
        await starting
        if service.failure is not None or model.facts is None:
            await service.close()
            raise StartError(service.failure or "the engine did not start")
        self._slots = asyncio.Semaphore(model.facts.max_num_seqs + AHEAD)
        self._service = service

    async def close(self) -> None:
        """End the engine, and what still runs on it."""
        service, self._service = self._service, None
        if service is not None:
            service.drain()
            service.cut()
            await service.close()

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """Return what the model makes of a text, or of token ids. Raises RequestError."""
        fields = (params or SamplingParams()).completion_fields()
        return await self._whole(parse_completion, {"prompt": prompt, **fields}, "cmpl")

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> RequestOutput:
        """Return the model's turn in a conversation, whose messages and tools are those of OpenAI's
        API. Raises RequestError."""
        return await self._whole(parse_chat, _chat_body(messages, params, tools), "chatcmpl")

    async def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Yield what `generate` returns of a prompt, or `chat` of messages, as it comes. Raises
        RequestError."""
        given = params or SamplingParams()
        if _is_chat(prompt):
            body: dict[str, object] = {"messages": prompt, **given.chat_fields()}
            deltas = self._deltas(parse_chat, body, "chatcmpl")
        else:
            body = {"prompt": prompt, **given.completion_fields()}
            deltas = self._deltas(parse_completion, body, "cmpl")
        async with aclosing(deltas) as parts:
            async for index, delta in parts:
                yield chunk_of(index, delta)

    async def embed(self, text: Prompt) -> tuple[float, ...]:
        """Return the vector of a text, or of token ids. Raises RequestError."""
        gathered = GatheredOutput()
        async with aclosing(self._deltas(parse_embedding, {"input": text}, "embd")) as deltas:
            async for _, delta in deltas:
                gathered.add(delta)
        return tuple(array("f", gathered.joined().vector))

    async def _whole(
        self, parse: InputParser, body: Mapping[str, object], id_prefix: str
    ) -> RequestOutput:
        async with self._generation(parse, body, id_prefix) as generation:
            context = generation.context
            outputs = [GatheredOutput() for _ in context.requests]
            async with aclosing(_run(generation)) as deltas:
                async for index, delta in deltas:
                    outputs[index].add(delta)
        whole = [each.joined() for each in outputs]
        best = tuple(output_of(whole[index]) for index in generation.best())
        (prompt,) = context.prompts
        return RequestOutput(prompt.token_ids, best, generation.num_cached_tokens())

    async def _deltas(
        self, parse: InputParser, body: Mapping[str, object], id_prefix: str
    ) -> AsyncGenerator[IndexedDelta, None]:
        async with self._generation(parse, body, id_prefix) as generation:
            async with aclosing(_run(generation)) as deltas:
                async for delta in deltas:
                    yield delta

    @asynccontextmanager
    async def _generation(
        self, parse: InputParser, body: Mapping[str, object], id_prefix: str
    ) -> AsyncGenerator[GenerationStream, None]:
        """Lend the generation of a body, which has not started, when it is its turn. Raises
        RequestError."""
        service, use = self._service, ModelUse()
        if service is None:
            raise StartError("the model is not open")
        async with self._slots:
            text = json.dumps(body, default=_as_json).encode()
            try:
                await use.begin(service.default_model, len(text))
                serving = service.default_model.serving_state()
                context = await _context(service, serving, parse, text, id_prefix)
                yield GenerationStream(context, service, serving)
            finally:
                use.end()


async def _context(
    service: Service, serving: ServingState, parse: InputParser, body: bytes, id_prefix: str
) -> RequestContext:
    arrived_s = service.sources.clock()
    tokenized = await service.inputs.prompts(parse, body, serving.input, EVERYONE.name)
    arrival = IncomingRequest(EVERYONE, f"llm-{service.sources.random_bytes(8).hex()}", arrived_s)
    processor = InputProcessor(serving.model.name, serving, service.sources, arrival)
    return processor.process(tokenized, id_prefix)


async def _run(generation: GenerationStream) -> AsyncGenerator[IndexedDelta, None]:
    """Run a generation to its end, or until the reader is gone. Raises RequestError."""
    reason = FinishReason.ERROR
    try:
        await generation.start()
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                yield delta
    except (GeneratorExit, asyncio.CancelledError):
        reason = FinishReason.ABORT
        raise
    finally:
        generation.abort(reason)
        generation.close()


def _config_of(model: str, options: Mapping[str, object]) -> ServerConfig:
    """Return the configuration of a server with one model. Raises InvalidOption."""
    known = [each.key for each in OPTIONS if each.section not in OF_A_SERVER]
    for name in options:
        if name not in known:
            raise InvalidOption(f"{name} is no option of a model: it has {', '.join(known)}")
    if model == TOY_MODEL:
        raise InvalidOption("the toy has no text: name a model")
    given = {name: as_flag(value) for name, value in options.items()}
    return read_config({**given, "model": [model], "log_level": "warning"}, {})


def _as_json(value: object) -> object:
    """Return a sequence or mapping of another kind as one that is written as JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _is_chat(prompt: Prompt | Sequence[Message]) -> bool:
    return not isinstance(prompt, str) and any(isinstance(each, Mapping) for each in prompt)


def _chat_body(
    messages: Sequence[Message],
    params: SamplingParams | None,
    tools: Sequence[Mapping[str, object]] | None,
) -> dict[str, object]:
    fields = (params or SamplingParams()).chat_fields()
    named = {} if tools is None else {"tools": tools}
    return {"messages": messages, **named, **fields}
