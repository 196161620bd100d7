"""Routes of pinned prefixes, which belong to the key that asked for them."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.engine.config import EngineConfig
from quire.server.apis.prefixes.answer import PrefixAnswer
from quire.server.apis.prefixes.inputs import parse_prefix, pinned_prefix
from quire.server.apis.prefixes.protocol import (
    PrefixDeleted,
    PrefixFields,
    PrefixList,
)
from quire.server.errors import NOT_FOUND, RequestError
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.generation.service import Service
from quire.server.http.endpoints import PREFIXES
from quire.server.http.json_responses import json_response
from quire.server.http.query import flag_of, query_of
from quire.server.models.model_prefixes import ModelPrefixes
from quire.server.models.pinned_prefix import PinnedPrefix
from quire.server.tenancy.tenants import arrival_of

MAX_SHOWN_CHARS = 128


class PrefixRoutes:
    """Handlers of pinned prefixes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route(PREFIXES, self.prefixes, methods=["GET", "POST"]),
            Route(f"{PREFIXES}/{{name}}", self.prefix, methods=["GET", "DELETE"]),
        )

    async def prefixes(self, request: Request) -> Response:
        return await self._create(request) if request.method == "POST" else self._list(request)

    async def _create(self, request: Request) -> Response:
        """Answer when the prefix is pinned. Raises RequestError where it cannot be."""
        tokenized, serving = await self._intake.tokenized(request, parse_prefix)
        asked = tokenized.request
        assert isinstance(asked, PrefixFields)
        _check_pins(serving.model.config.engine)
        context = self._intake.processed(request, tokenized, serving, "prefix")
        prefix = pinned_prefix(asked, context)
        prefixes, rates = serving.model.prefixes, context.arrival.tenant.rates
        try:
            prefixes.add(prefix, asked.ttl_s)
        except RequestError:
            if rates is not None:
                rates.give_back_prompt(context.num_prompt_tokens)
            raise
        generation = GenerationStream(context, self._service, serving)
        return PrefixAnswer(prefix, prefixes, generation, self._service)

    def _list(self, request: Request) -> Response:
        """Answer with the client's own prefixes, or those of all, by model the oldest first."""
        tenants, tenant = self._service.tenants, arrival_of(request).tenant
        wants_all = flag_of(query_of(request, "all"), "all")
        if wants_all:
            tenants.check_sees_all(tenant)
        listed = []
        for model in self._service.models:
            for each in model.prefixes.of(None if wants_all else tenant.name):
                shown = model.prefixes.shown(each)
                if wants_all and tenants.are_apart:
                    shown = msgspec.structs.replace(shown, tenant=each.tenant)
                listed.append(shown)
        return json_response(PrefixList(tuple(listed)))

    async def prefix(self, request: Request) -> Response:
        """Answer with a prefix as it is now, or pin it no more; one that is being computed ends."""
        query_of(request)
        prefix, prefixes = self._own(request)
        if request.method == "DELETE":
            prefixes.remove(prefix.id)
            return json_response(PrefixDeleted(prefix.id))
        return json_response(prefixes.shown(prefix))

    def _own(self, request: Request) -> tuple[PinnedPrefix, ModelPrefixes]:
        """Return the client's own prefix that the path names, of an administrator anyone's, and
        those of its model. Raises RequestError."""
        name, tenant = str(request.path_params["name"]), arrival_of(request).tenant
        for model in self._service.models:
            prefix = model.prefixes.find(name)
            if prefix is not None and (tenant.is_admin or prefix.tenant == tenant.name):
                return prefix, model.prefixes
        raise RequestError(
            f"No prefix {name[:MAX_SHOWN_CHARS]!r} of yours is pinned.",
            code="prefix_not_found",
            status=NOT_FOUND,
        )


def _check_pins(config: EngineConfig) -> None:
    """Raise RequestError for a server that pins nothing."""
    why = None
    if not config.memory.enable_prefix_caching:
        why = "--enable-prefix-caching false: nothing is cached"
    elif config.scheduling.max_pinned_share == 0:
        why = "--max-pinned-share 0"
    if why is not None:
        raise RequestError(f"This server pins no prefixes ({why}).", code="pins_off")
