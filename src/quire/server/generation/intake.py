"""The way of a request before the engine has it: from its body to tokens and within its limits, the
same on every route.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from quire.server.errors import DeadlineExceeded, RequestError, ShuttingDown
from quire.server.generation.context import RequestContext
from quire.server.generation.input_processor import InputProcessor
from quire.server.generation.input_reader import INLINE_BYTES
from quire.server.generation.named_model import NamedModel
from quire.server.generation.parsed_input import InputParser, TokenizedRequest
from quire.server.generation.service import Service
from quire.server.http.json_responses import JSON
from quire.server.http.report_headers import report_headers
from quire.server.models.model_use import model_use_of
from quire.server.models.served_model import ServedModel, ServingState
from quire.server.tenancy.rates import RATES, RateLimited
from quire.server.tenancy.tenants import arrival_of

Made = TypeVar("Made")


class RequestIntake:
    """Takes requests in: from a body to prompts in tokens, and on to what the engine is asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def context(
        self, request: Request, parse: InputParser, id_prefix: str
    ) -> tuple[RequestContext, ServingState]:
        """Return what the engine is asked for a request, and what serving needs. Raises
        RequestError."""
        tokenized, serving = await self.tokenized(request, parse)
        return self.processed(request, tokenized, serving, id_prefix), serving

    async def tokenized(
        self, request: Request, parse: InputParser
    ) -> tuple[TokenizedRequest, ServingState]:
        """Return a request with its prompts in tokens. Raises RequestError."""
        body, serving = await self.read(request)
        return await self.tokenize(request, parse, body, serving), serving

    async def tokenize(
        self, request: Request, parse: InputParser, body: bytes, serving: ServingState
    ) -> TokenizedRequest:
        """Return a request whose `body` was read with its prompts in tokens. Raises
        RequestError."""
        tenant = arrival_of(request).tenant.name
        reading = self._service.inputs.prompts(parse, body, serving.input, tenant)
        return await self._unless_cancelled(request, body, reading)

    def processed(
        self,
        request: Request,
        tokenized: TokenizedRequest,
        serving: ServingState,
        id_prefix: str,
        *,
        names_session: bool = False,
    ) -> RequestContext:
        """Return what the engine is asked for a tokenised request, whose id begins with
        `id_prefix`, and with `names_session` names its conversation, unless that has a name.
        Raises RequestError."""
        asked = tokenized.request.model
        model = serving.input.limits.served_name(asked) or serving.model.name
        processor = InputProcessor(model, serving, self._service.sources, arrival_of(request))
        context = processor.process(tokenized, id_prefix, names_session=names_session)
        self.admit_prompt(request, context.num_prompt_tokens, context.prompts[0].field)
        if context.ignored:
            serving.model.metrics.on_ignored(context.ignored)
        serving.model.note_once(tokenized.notices)
        if tokenized.grammar is not None:
            serving.model.metrics.on_structured(tokenized.grammar.kind, tokenized.check_s)
        return context

    async def answer(self, request: Request, parse: InputParser) -> Response:
        """Answer a request that needs no engine. Raises RequestError."""
        body, serving = await self.read(request)
        tenant = arrival_of(request).tenant.name
        reading = self._service.inputs.answer(parse, body, serving.input, tenant)
        response = await self._unless_cancelled(request, body, reading)
        headers = report_headers(response.warnings, response.ignored)
        return Response(response.body, headers=headers, media_type=JSON)

    async def read(self, request: Request) -> tuple[bytes, ServingState]:
        """Return the body and what serving needs. Raises RequestError.

        That the server is not ready is said before the body is checked, but after it is read: a
        client that still sends would not read the answer.
        """
        self._admit(request)
        body = await self._service.bodies.read(request, self._service.config.max_body_bytes)
        await self._service.work_throttle.wait(arrival_of(request).tenant.name)
        return body, await self._serving(request, body)

    async def _serving(self, request: Request, body: bytes) -> ServingState:
        """Return what serving the model needs that the body names, once it is loaded. A server of
        one model does not look into the body for that."""
        service = self._service
        service.check_open()
        named = None
        if len(service.models) > 1:
            named = await self._named(request, body)
        model = service.default_model if named is None else service.model_named(named.name)
        if model.is_starting:
            model.check_is_loaded()
        use = model_use_of(request)
        if model.is_loaded:
            await use.begin(model, len(body))
        else:
            await self._loaded(request, model, named or await self._named(request, body), len(body))
        return model.serving_state()

    async def _named(self, request: Request, body: bytes) -> NamedModel:
        reading = self._service.inputs.named_model(body, arrival_of(request).tenant.name)
        return await self._unless_cancelled(request, body, reading)

    async def _loaded(
        self, request: Request, model: ServedModel, named: NamedModel, num_bytes: int
    ) -> None:
        """Return once the model is loaded. Raises RequestError where it cannot be, or where the
        client goes, its deadline passes or the server must stop before."""
        service = self._service
        left_s = None
        if named.time_limit_s is not None:
            left_s = arrival_of(request).arrived_s + named.time_limit_s - service.sources.clock()
        beginning = model_use_of(request).begin(model, num_bytes)
        try:
            async with asyncio.timeout(left_s):
                await self._unless_left(request, beginning, service.closes)
        except TimeoutError:
            raise DeadlineExceeded("The deadline passed while the model was loaded.") from None

    def _admit(self, request: Request) -> None:
        """Charge a request to the rates of its key, if it has any. Raises RequestError."""
        rates = arrival_of(request).tenant.rates
        if rates is not None:
            request.scope[RATES] = rates
            with self._counted(request):
                rates.admit_request(self._service.sources.clock())

    def admit_prompt(self, request: Request, num_tokens: int, field: str) -> None:
        """Charge the tokens of a request's prompts, which came in `field`, to the rates of its key,
        if it has any. Raises RequestError."""
        rates = arrival_of(request).tenant.rates
        if rates is not None:
            with self._counted(request):
                rates.admit_prompt(self._service.sources.clock(), num_tokens, field)

    @contextmanager
    def _counted(self, request: Request) -> Iterator[None]:
        try:
            yield
        except RateLimited as limited:
            tenant = arrival_of(request).tenant.name
            self._service.metrics.rate_accounts.count(tenant, limited.rate)
            raise

    async def _unless_cancelled(
        self, request: Request, body: bytes, reading: Awaitable[Made]
    ) -> Made:
        """Return what `reading` does, unless the client goes away or the server must stop before;
        RequestError then. A small body is read at once."""
        if len(body) <= INLINE_BYTES:
            return await reading
        return await self._unless_left(request, reading, self._service.cut_off)

    async def _unless_left(
        self, request: Request, reading: Awaitable[Made], stops: asyncio.Future[None]
    ) -> Made:
        """Return what `reading` does, unless the client goes away or `stops` is done before."""
        working = asyncio.ensure_future(reading)
        leaving = asyncio.ensure_future(request.receive())
        ends: list[asyncio.Future[Made] | asyncio.Future[Message] | asyncio.Future[None]]
        ends = [working, leaving, stops]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            is_read = not working.cancel()
        if is_read:
            return working.result()
        if stops.done():
            raise ShuttingDown
        raise RequestError("The client went away while its request was read.", code="client_gone")
