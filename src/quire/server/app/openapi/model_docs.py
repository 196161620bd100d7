"""The rows of the document of the API for the routes of models."""

from collections.abc import Mapping

from quire.server.apis.route_doc import Parameter, ResponseDoc, RouteDoc
from quire.server.app.models.wire import ModelList
from quire.server.app.openapi import examples
from quire.server.errors import CONFLICT, NOT_FOUND, SERVER_ERROR, UNAVAILABLE

_OK = 200
_NAME = Parameter("name", "path", "The model.", examples.CARD.id)

MODEL_ROUTES: Mapping[str, RouteDoc] = {
    "/v1/models": RouteDoc("The models.", {_OK: (ResponseDoc(ModelList((examples.CARD,))),)}),
    "/v1/models/{name}": RouteDoc(
        "One of the models.",
        {_OK: (ResponseDoc(examples.CARD),)},
        (NOT_FOUND,),
        parameters=(_NAME,),
    ),
    "/v1/models/{name}/load": RouteDoc(
        "Load a model, and wait until that is done; for the admin key, where there is one.",
        {_OK: (ResponseDoc(examples.MODEL_LOADED),)},
        (NOT_FOUND, UNAVAILABLE),
        parameters=(_NAME,),
    ),
    "/v1/models/{name}/unload": RouteDoc(
        "Unload a model once what runs has ended, and wait until that is done; for the admin key, "
        "where there is one.",
        {_OK: (ResponseDoc(examples.MODEL_UNLOADED),)},
        (NOT_FOUND, CONFLICT, UNAVAILABLE),
        parameters=(_NAME,),
    ),
    "/v1/models/{name}/flight_record": RouteDoc(
        "Write what an engine of the model has recorded to a file that `quire replay` reads; for "
        "the admin key, where there is one.",
        {_OK: (ResponseDoc(examples.FLIGHT_RECORD),)},
        (NOT_FOUND, CONFLICT, SERVER_ERROR, UNAVAILABLE),
        parameters=(
            _NAME,
            Parameter("engine", "query", "The engine, of several.", "0", r"^[0-9]{1,9}$"),
        ),
    ),
}
