"""Events of the live view as they come."""

from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.observability.live.live_feed import event_of
from quire.server.observability.live.live_view import STATES
from quire.server.observability.live.wire import (
    Figures,
    LiveChanges,
    LiveEngine,
    LiveEngineState,
    LivePicture,
    PaceFigures,
    RequestEntered,
    RequestProgress,
    RequestTimes,
    TargetFigures,
    Why,
)

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
    targets=TargetFigures(ttft_met=9, ttft_missed=1, itl_met=150, itl_missed=3),
    pace=PaceFigures(
        64,
        "cmpl-0123456789abcdef-0",
        "Prompts get 64 tokens of a step, so that cmpl-0123456789abcdef-0 keeps its target of "
        "100 ms.",
        predicted_ms=81.25,
        error=0.04,
    ),
)
_WHY = Why("first_token", 0, "", "First token.")
_ENTERED = RequestEntered(
    0, "cmpl-0123456789abcdef-0", _T - 1, prompt=9, max_tokens=16, target_itl_ms=100.0
)
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
    requests=[_ENTERED],
    progress=[RequestProgress(0, "decode", 12, 4, 0, _WHY, RequestTimes(220.5, 80.75, 0))],
    figures=_FIGURES,
)
_CHANGES = LiveChanges(
    t=_T + 0.25,
    runs=[3, 1, 16],
    sets=[],
    entered=[],
    left=[],
    progress=[RequestProgress(0, "decode", 15, 7, 0, None, RequestTimes(220.5, 104.5, 1))],
    preempted=[],
    figures=_FIGURES,
)
_EXAMPLES = (LiveEngine(_T, MODEL, LiveEngineState.LOADED), _PICTURE, _CHANGES)
LIVE_EVENTS = b"".join(map(event_of, _EXAMPLES)).decode()
