"""Routes of the models: which there are, and how they are loaded and unloaded, and what
their engines have recorded."""

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import parameter, responses
from quire.server.apis.routing import BareRoute, service_of, state_of
from quire.server.app.models import examples
from quire.server.app.models.abilities import model_abilities, model_kind
from quire.server.app.models.wire import (
    FlightRecordWritten,
    ModelCard,
    ModelChanged,
    ModelList,
    ModelStatus,
)
from quire.server.errors import CONFLICT, NOT_FOUND, SERVER_ERROR, UNAVAILABLE, RequestError
from quire.server.generation.service import Service
from quire.server.http.json_responses import json_response
from quire.server.http.query import number_of, query_of
from quire.server.models.flight_records import FlightRecordWriter
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel
from quire.server.tenancy.tenants import arrival_of

_MODEL = "/v1/models/{name:path}"
_NAME = parameter("name", "path", "The model.", examples.CARD.id)
_ENGINE = parameter("engine", "query", "The engine, of several.", "0", r"^[0-9]{1,9}$")

router = APIRouter(tags=["Models"], route_class=BareRoute)


class FlightRecords:
    """The writer of the application's flight records."""

    def __init__(self, service: Service) -> None:
        self.writer = FlightRecordWriter()


@router.get("/v1/models", summary="The models.", responses=responses(ModelList((examples.CARD,))))
async def models(request: Request) -> Response:
    service = service_of(request)
    cards = [
        _card(service, name, model)
        for model in service.models
        for name in model.config.served_model_names
    ]
    return json_response(ModelList(tuple(cards)))


@router.post(
    f"{_MODEL}/load",
    summary="Load a model, and wait until that is done; for the admin key, where there is one.",
    responses=responses(examples.MODEL_LOADED, errors=(NOT_FOUND, UNAVAILABLE)),
    openapi_extra={"parameters": [_NAME]},
)
async def load(request: Request) -> Response:
    name, model = _administered(request)
    if not model.has_died:
        await model.lifecycle.load()
    return json_response(ModelChanged(name, _status(model)))


@router.post(
    f"{_MODEL}/unload",
    summary="Unload a model once what runs has ended, and wait until that is done; for the admin "
    "key, where there is one.",
    responses=responses(examples.MODEL_UNLOADED, errors=(NOT_FOUND, CONFLICT, UNAVAILABLE)),
    openapi_extra={"parameters": [_NAME]},
)
async def unload(request: Request) -> Response:
    name, model = _administered(request)
    within_s = service_of(request).config.shutdown_timeout_s
    if not await model.lifecycle.unload(within_s):
        raise RequestError(
            f"Requests still use the model after {within_s:g} s (--shutdown-timeout): it stays "
            "loaded.",
            code="model_in_use",
            status=CONFLICT,
        )
    return json_response(ModelChanged(name, _status(model)))


@router.post(
    f"{_MODEL}/flight_record",
    summary="Write what an engine of the model has recorded to a file that `quire replay` reads; "
    "for the admin key, where there is one.",
    responses=responses(
        examples.FLIGHT_RECORD, errors=(NOT_FOUND, CONFLICT, SERVER_ERROR, UNAVAILABLE)
    ),
    openapi_extra={"parameters": [_NAME, _ENGINE]},
)
async def flight_record(request: Request) -> Response:
    name, model = _administered(request)
    engine = number_of(query_of(request, "engine"), "engine")
    record = await state_of(request, FlightRecords).writer.write(model, engine)
    return json_response(
        FlightRecordWritten(
            name,
            str(record.path),
            record.num_bytes,
            int(record.began_s),
            int(record.ended_s),
            record.num_steps,
        )
    )


@router.get(
    _MODEL,
    summary="One of the models.",
    responses=responses(examples.CARD, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_NAME]},
)
async def model(request: Request) -> Response:
    service, asked = service_of(request), str(request.path_params["name"])
    model = service.model_named(asked)
    return json_response(_card(service, service.config.served_name(asked) or asked, model))


def _administered(request: Request) -> tuple[str, ServedModel]:
    """Return the model that the path names, to those who may change its state, which are those
    who may do what else the admin key guards."""
    service = service_of(request)
    service.tenants.check_admin(arrival_of(request).tenant)
    service.check_open()
    asked = str(request.path_params["name"])
    model = service.model_named(asked)
    if model.is_starting:
        model.check_is_loaded()
    return service.config.served_name(asked) or asked, model


def _card(service: Service, name: str, model: ServedModel) -> ModelCard:
    facts, status = model.known_facts, _status(model)
    max_model_len = None if facts is None else facts.max_model_len
    abilities, kind = model_abilities(model), model_kind(model)
    created_s = service.since_unix_s
    return ModelCard(name, created_s, model.name, max_model_len, status, abilities, kind)


def _status(model: ServedModel) -> ModelStatus:
    has_failed = model.state is ModelState.FAILED
    return ModelStatus(model.state, (model.down_reason or "") if has_failed else UNSET)
