"""Routes of pinned prefixes, which belong to the key that asked for them."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.engine.config import EngineConfig
from quire.server.apis.descriptions import (
    ALL_KEYS,
    CREATED_S,
    REPORT_HEADERS,
    TOKENIZES,
    Examples,
    json_body,
    parameter,
    responses,
)
from quire.server.apis.prefixes.answer import PrefixAnswer
from quire.server.apis.prefixes.inputs import parse_prefix, pinned_prefix
from quire.server.apis.prefixes.protocol import (
    PrefixChatRequest,
    PrefixDeleted,
    PrefixFields,
    PrefixList,
    PrefixTextRequest,
)
from quire.server.apis.routing import BareRoute, service_of
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.errors import CONFLICT, NOT_FOUND, RequestError
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.http.endpoints import PREFIXES
from quire.server.http.json_responses import json_response
from quire.server.http.query import flag_of, query_of
from quire.server.models.model_prefixes import ModelPrefixes
from quire.server.models.pinned_prefix import PinnedPrefix, Prefix, PrefixState
from quire.server.tenancy.tenants import arrival_of

MAX_SHOWN_CHARS = 128
_EXAMPLE = Prefix(
    id="prefix-0123456789abcdef",
    created_at=CREATED_S,
    expires_at=CREATED_S + 3600,
    model=MODEL,
    name="support",
    state=PrefixState.PINNED,
    why=None,
    num_tokens=100,
    num_pinned_tokens=96,
    num_blocks=6,
)
_LONG = "You are a patient clerk of a small library, and answer in one sentence."
_REQUESTS: Examples = {
    "messages": {"messages": [{"role": "system", "content": _LONG}], "name": "support"},
    "text": {"prompt": _LONG, "ttl_s": 3600},
}
_PREFIX = f"{PREFIXES}/{{name}}"
_NAME = parameter("name", "path", "The id of the prefix.", _EXAMPLE.id)

router = APIRouter(tags=["Prefixes"], route_class=BareRoute)


@router.post(
    PREFIXES,
    summary="Pin a prefix: its cached blocks are never evicted.",
    responses=responses(_EXAMPLE, with_headers=REPORT_HEADERS, errors=(*TOKENIZES, CONFLICT)),
    openapi_extra=json_body(PrefixTextRequest, PrefixChatRequest, examples=_REQUESTS),
)
async def create(request: Request) -> Response:
    service = service_of(request)
    intake = RequestIntake(service)
    tokenized, serving = await intake.tokenized(request, parse_prefix)
    asked = tokenized.request
    assert isinstance(asked, PrefixFields)
    _check_pins(serving.model.config.engine)
    context = intake.processed(request, tokenized, serving, "prefix")
    prefix = pinned_prefix(asked, context)
    prefixes, rates = serving.model.prefixes, context.arrival.tenant.rates
    try:
        prefixes.add(prefix, asked.ttl_s)
    except RequestError:
        if rates is not None:
            rates.give_back_prompt(context.num_prompt_tokens)
        raise
    generation = GenerationStream(context, service, serving)
    return PrefixAnswer(prefix, prefixes, generation, service)


@router.get(
    PREFIXES,
    summary="One's own pinned prefixes, of each model the oldest first.",
    responses=responses(PrefixList((_EXAMPLE,))),
    openapi_extra={"parameters": [ALL_KEYS]},
)
async def listed(request: Request) -> Response:
    service = service_of(request)
    tenants, tenant = service.tenants, arrival_of(request).tenant
    wants_all = flag_of(query_of(request, "all"), "all")
    if wants_all:
        tenants.check_sees_all(tenant)
    prefixes = []
    for model in service.models:
        for each in model.prefixes.of(None if wants_all else tenant.name):
            shown = model.prefixes.shown(each)
            if wants_all and tenants.are_apart:
                shown = msgspec.structs.replace(shown, tenant=each.tenant)
            prefixes.append(shown)
    return json_response(PrefixList(tuple(prefixes)))


@router.get(
    _PREFIX,
    summary="A pinned prefix of one's own, as it is now.",
    responses=responses(_EXAMPLE, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_NAME]},
)
async def retrieve(request: Request) -> Response:
    query_of(request)
    prefix, prefixes = _own(request)
    return json_response(prefixes.shown(prefix))


@router.delete(
    _PREFIX,
    summary="Pin a prefix of one's own no more; one that is being computed ends.",
    responses=responses(PrefixDeleted(_EXAMPLE.id), errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_NAME]},
)
async def delete(request: Request) -> Response:
    query_of(request)
    prefix, prefixes = _own(request)
    prefixes.remove(prefix.id)
    return json_response(PrefixDeleted(prefix.id))


def _own(request: Request) -> tuple[PinnedPrefix, ModelPrefixes]:
    """Return the client's own prefix that the path names, of an administrator anyone's, and
    those of its model. Raises RequestError."""
    name, tenant = str(request.path_params["name"]), arrival_of(request).tenant
    for model in service_of(request).models:
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
