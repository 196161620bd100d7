"""The rows of the document of the API for the routes that stream what a model does."""

from collections.abc import Mapping

from quire.server.apis.route_doc import Parameter, ResponseDoc, RouteDoc
from quire.server.app.live.routes import LIVE
from quire.server.app.openapi import examples
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.errors import NOT_FOUND, TOO_MANY, UNAVAILABLE
from quire.server.observability.kv_event_feed import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Gap,
)
from quire.server.observability.live.live_feed import event_of
from quire.server.observability.live.live_view import STATES
from quire.server.observability.live.wire import (
    Figures,
    LiveChanges,
    LiveEngine,
    LiveEngineState,
    LivePicture,
    RequestEntered,
    RequestProgress,
    Why,
)

EVENTS = "text/event-stream"
_OK = 200
_T = 1767225600.25
_FIGURES = Figures(
    running=1,
    waiting=0,
    unlisted=0,
    preemptions=0,
    seconds=0.25,
    steps=3,
    step_ms=74.5,
    tokens_per_s=12.0,
    hit_rate=0.5,
    blocks={"free": 5, "cached": 1, "active": 1, "pinned": 0, "swapped": 0, "host_cached": 0},
)
_WHY = Why("first_token", 0, "")
_PICTURE = LivePicture(
    t=_T,
    model=MODEL,
    states=STATES,
    num_blocks=8,
    num_host_blocks=0,
    block_size=16,
    runs=[0, 1, 0, 1, 1, 16, 2, 1, 2, 3, 5, 1],
    ages=[8, -1],
    sets=[(16, (0,))],
    requests=[RequestEntered(0, "cmpl-0123456789abcdef-0", _T - 1, prompt=9, max_tokens=16)],
    progress=[RequestProgress(0, "decode", 12, 4, 0, _WHY)],
    figures=_FIGURES,
)
_CHANGES = LiveChanges(
    t=_T + 0.25,
    runs=[3, 1, 16],
    sets=[],
    entered=[],
    left=[],
    progress=[RequestProgress(0, "decode", 15, 7, 0, None)],
    preempted=[],
    figures=_FIGURES,
)
_EXAMPLES = (LiveEngine(_T, MODEL, LiveEngineState.LOADED), _PICTURE, _CHANGES)

STREAM_ROUTES: Mapping[str, RouteDoc] = {
    "/v1/kv_events": RouteDoc(
        "The events of the prefix cache, where `--enable-kv-cache-events` is set; for the admin "
        "key, where there is one.",
        {
            _OK: (
                ResponseDoc(
                    examples.KV_EVENTS,
                    EVENTS,
                    "Events without an end.",
                    (BlockStored, BlockRemoved, AllBlocksCleared, Gap),
                ),
            )
        },
        (NOT_FOUND, UNAVAILABLE),
        parameters=(
            Parameter("model", "query", "The model, of several.", MODEL),
            Parameter(
                "last-event-id",
                "header",
                "The last event that the client has; the answer goes on after it.",
                "1",
                r"^[0-9]{1,18}$",
            ),
        ),
    ),
    LIVE: RouteDoc(
        "What every block of a model holds and how far its requests are, a few times a second: "
        "a whole picture, then what changes. Of other keys' requests only that some hold a block, "
        "unless with the admin key.",
        {
            _OK: (
                ResponseDoc(
                    b"".join(map(event_of, _EXAMPLES)).decode(),
                    EVENTS,
                    "Events without an end.",
                    (LiveEngine, LivePicture, LiveChanges),
                    has_done=False,
                ),
            )
        },
        (NOT_FOUND, TOO_MANY, UNAVAILABLE),
        parameters=(Parameter("model", "query", "The model, of several.", MODEL),),
    ),
}
