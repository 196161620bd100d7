"""The smoothness of the live view: the times between two frames of a browser that draws it.

    python -m bench.page_frames [--running 256] [--blocks 10000] [--seconds 20]

A server of its own has the page, and at `/v1/live` the events of a real scheduler and cache that
are kept busy; Chromium without a window opens the tab. Playwright and Chromium must be installed
(`make page-check`). Prints percentiles of the milliseconds between two animation frames.
"""

import argparse
import asyncio
import json
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from statistics import quantiles

import uvicorn
from playwright.sync_api import sync_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.live_cost import BLOCK_SIZE, Load
from quire.scheduler.live.live_watch import LiveWatch
from quire.server.app.page.routes import router as page
from quire.server.observability.live.live_feed import INTERVAL_S, event_of
from quire.server.observability.live.live_view import BlockTotals, EngineFrame, LiveView, Moment
from quire.server.observability.live.step_figures import StepFigures

STEPS_PER_FRAME = 3
WARM_UP_STEPS = 400
MEASURE = """async (seconds) => {
    const times = [];
    const until = performance.now() + 1000 * seconds;
    let last = await new Promise(requestAnimationFrame);
    while (last < until) {
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return times;
}"""


async def events(load: Load, num_blocks: int) -> AsyncIterator[bytes]:
    """Yield a picture, and then what changes, as a server would."""
    watch = LiveWatch(load.scheduler.in_flight)
    view = LiveView(BlockTotals(num_blocks, 0, BLOCK_SIZE), "m", None)
    sets: dict[int, tuple[int, ...]] = {}
    is_first = True
    while True:
        steps = StepFigures(load.scheduler.stats, time.monotonic())
        for _ in range(STEPS_PER_FRAME):
            load.step()
        frame, moment = watch.frame(), Moment(time.time(), time.monotonic())
        sets |= dict(frame.sets)
        figures = steps.figures(
            load.scheduler.stats, frame.num_unlisted, moment.clock_s + INTERVAL_S
        )
        changes = view.apply(EngineFrame(frame, sets, (), figures, moment))
        yield event_of(view.picture(moment, figures) if is_first else changes)
        is_first = False
        await asyncio.sleep(INTERVAL_S)


@contextmanager
def serving(load: Load, num_blocks: int) -> Iterator[str]:
    """Serve the page and the events; yield the address."""

    async def live(request: Request) -> Response:
        return StreamingResponse(events(load, num_blocks), media_type="text/event-stream")

    async def models(request: Request) -> Response:
        card = {"id": "m", "kind": "generate", "status": {"value": "loaded"}}
        return JSONResponse({"data": [card]})

    routes = [Route("/v1/live", live), Route("/v1/models", models), *page.routes]
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=routes), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = server.force_exit = True
    thread.join(10)


def measure(url: str, seconds: float) -> list[float]:
    """Return the milliseconds between the frames of a browser that shows the view."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 1000})
        tab.goto(f"{url}/#live")
        tab.get_by_label("Map of blocks").wait_for()
        tab.wait_for_timeout(2000)
        times: list[float] = tab.evaluate(MEASURE, seconds)
        browser.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=256, help="requests that run")
    parser.add_argument("--blocks", type=int, default=10_000, help="blocks of the cache")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    args = parser.parse_args()
    load = Load(args.running, args.blocks)
    for _ in range(WARM_UP_STEPS):
        load.step()
    with serving(load, args.blocks) as url:
        times = measure(url, args.seconds)
    stats, cuts = load.scheduler.stats, quantiles(times, n=100)
    told = {f"p{percent}_ms": round(cuts[percent - 1], 1) for percent in (50, 95, 99)}
    told |= {"most_ms": round(max(times), 1), "frames": len(times)}
    print(f"{stats.num_running} running, {stats.num_waiting} waiting, {args.blocks} blocks")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
