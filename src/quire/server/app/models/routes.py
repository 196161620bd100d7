"""Routes of the models: which there are, and how they are loaded and unloaded, and what
their engines have recorded."""

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.app.models.abilities import model_abilities, model_kind
from quire.server.app.models.wire import (
    FlightRecordWritten,
    ModelCard,
    ModelChanged,
    ModelList,
    ModelStatus,
)
from quire.server.errors import CONFLICT, RequestError
from quire.server.generation.service import Service
from quire.server.http.json_responses import json_response
from quire.server.http.query import number_of, query_of
from quire.server.models.flight_records import FlightRecordWriter
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel
from quire.server.tenancy.tenants import arrival_of


class ModelRoutes:
    """Handlers of the models. Who may load and unload them, and have flight records written, is
    whoever may do what else the admin key guards."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created_s = int(service.sources.now())
        self._flight_records = FlightRecordWriter()

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}/load", self.load, methods=["POST"]),
            Route("/v1/models/{name:path}/unload", self.unload, methods=["POST"]),
            Route("/v1/models/{name:path}/flight_record", self.flight_record, methods=["POST"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
        )

    async def models(self, request: Request) -> Response:
        cards = [
            self._card(name, model)
            for model in self._service.models
            for name in model.config.served_model_names
        ]
        return json_response(ModelList(tuple(cards)))

    async def model(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        return json_response(self._card(name, self._service.model_named(name)))

    async def load(self, request: Request) -> Response:
        """Answer when the model is loaded, or could not be: the state tells."""
        name, model = self._administered(request)
        if not model.has_died:
            await model.lifecycle.load()
        return json_response(ModelChanged(name, _status(model)))

    async def unload(self, request: Request) -> Response:
        """Answer when the model is unloaded. Raises RequestError where what runs does not end."""
        name, model = self._administered(request)
        within_s = self._service.config.shutdown_timeout_s
        if not await model.lifecycle.unload(within_s):
            raise RequestError(
                f"Requests still use the model after {within_s:g} s (--shutdown-timeout): it stays "
                "loaded.",
                code="model_in_use",
                status=CONFLICT,
            )
        return json_response(ModelChanged(name, _status(model)))

    async def flight_record(self, request: Request) -> Response:
        """Write what an engine of the model has recorded to a file; answer with where it is."""
        name, model = self._administered(request)
        engine = number_of(query_of(request, "engine"), "engine")
        record = await self._flight_records.write(model, engine)
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

    def _administered(self, request: Request) -> tuple[str, ServedModel]:
        """Return the model that the path names, to those who may change its state."""
        self._service.tenants.check_admin(arrival_of(request).tenant)
        self._service.check_open()
        name = str(request.path_params["name"])
        model = self._service.model_named(name)
        if model.is_starting:
            model.check_is_loaded()
        return name, model

    def _card(self, name: str, model: ServedModel) -> ModelCard:
        facts, status = model.known_facts, _status(model)
        max_model_len = None if facts is None else facts.max_model_len
        abilities, kind = model_abilities(model), model_kind(model)
        return ModelCard(name, self._created_s, model.name, max_model_len, status, abilities, kind)


def _status(model: ServedModel) -> ModelStatus:
    has_failed = model.state is ModelState.FAILED
    return ModelStatus(model.state, (model.down_reason or "") if has_failed else UNSET)
