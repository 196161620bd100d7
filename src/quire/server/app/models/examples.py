"""Answers of the routes of models, as they are shown."""

from quire.server.apis.descriptions import CREATED_S
from quire.server.app.models.wire import (
    FlightRecordWritten,
    ModelAbilities,
    ModelCard,
    ModelChanged,
    ModelStatus,
)
from quire.server.config import BUNDLED_MODEL_NAME as MODEL

_LOADED = ModelStatus("loaded")
CARD = ModelCard(
    MODEL,
    CREATED_S,
    MODEL,
    2048,
    _LOADED,
    ModelAbilities(
        completion=True,
        chat=True,
        tools=True,
        reasoning=False,
        structured_outputs=True,
        embeddings=True,
        rerank=False,
        tool_format="hermes",
    ),
)
MODEL_LOADED = ModelChanged(MODEL, _LOADED)
MODEL_UNLOADED = ModelChanged(MODEL, ModelStatus("unloaded"))
FLIGHT_RECORD = FlightRecordWritten(
    MODEL,
    "/var/lib/quire/flight/20261125T004310Z-123456789-asked.flight",
    bytes=1_204_317,
    began=CREATED_S,
    ended=CREATED_S + 590,
    steps=31_415,
)
