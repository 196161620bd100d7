"""The states of a model, under any order of requests, loads, failures and idle times."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.errors import Overloaded, RequestError
from quire.server.models.lifecycle import (
    Actions,
    Lifecycle,
    LoadFailed,
    ModelState,
    NotLoaded,
    UnloadReason,
    WaitLimits,
)
from tests.profiles import cases

TICK_S = 0.001
LIMITS = WaitLimits(100, 1000)


@dataclass
class Model:
    """A model that is loaded or not; `num_faults` counts what must never be."""

    load_ticks: int = 1
    failing: list[bool] = field(default_factory=list)
    is_loaded: bool = False
    num_users: int = 0
    num_loads: int = 0
    num_faults: int = 0

    async def load(self) -> None:
        self.num_faults += self.is_loaded
        self.num_loads += 1
        await asyncio.sleep(self.load_ticks * TICK_S)
        if self.failing and self.failing.pop():
            raise LoadFailed("by the script")
        self.is_loaded = True

    async def unload(self) -> None:
        self.num_faults += not self.is_loaded or self.num_users > 0
        self.is_loaded = False
        await asyncio.sleep(self.load_ticks * TICK_S)

    async def use(self, lifecycle: Lifecycle, ticks: int) -> None:
        await lifecycle.enter()
        self.num_users += 1
        try:
            for _ in range(ticks):
                self.num_faults += not self.is_loaded
                await asyncio.sleep(TICK_S)
        finally:
            self.num_users -= 1
            lifecycle.leave()


def lifecycle_of(
    model: Model,
    unload_after_s: float | None = None,
    limits: WaitLimits = LIMITS,
    clock: Callable[[], float] = time.monotonic,
) -> Lifecycle:
    actions = Actions(model.load, model.unload)
    return Lifecycle(actions, unload_after_s=unload_after_s, limits=limits, clock=clock)


@cases(60)
@given(
    st.lists(
        st.tuples(st.sampled_from(("use", "unload", "cancel", "load")), st.integers(0, 4)),
        max_size=25,
    ),
    st.sampled_from((None, 0.0, TICK_S, 3 * TICK_S)),
    st.lists(st.booleans(), max_size=4),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_any_order_ends_with_each_request_served_by_a_loaded_model(
    script: list[tuple[str, int]],
    unload_after_s: float | None,
    failing: list[bool],
    load_ticks: int,
    chance: random.Random,
) -> None:
    async def run() -> None:
        model = Model(load_ticks, failing)
        fast = lambda: 1e9 * time.monotonic()  # noqa: E731  the next try is due at once
        lifecycle = lifecycle_of(model, unload_after_s, clock=fast)
        cancelled: list[asyncio.Task[None]] = []
        tasks: list[asyncio.Task[object]] = []
        for action, ticks in script:
            await asyncio.sleep(chance.choice((0, 0, TICK_S, 4 * TICK_S)))
            if action == "unload":
                tasks.append(asyncio.create_task(lifecycle.unload(ticks * TICK_S)))
            elif action == "load":
                tasks.append(asyncio.create_task(lifecycle.load()))
            else:
                using = asyncio.create_task(model.use(lifecycle, ticks))
                (tasks if action == "use" else cancelled).append(using)
                if action == "cancel":
                    asyncio.get_running_loop().call_later(ticks * TICK_S / 2, using.cancel)
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            left = await asyncio.gather(*cancelled, return_exceptions=True)
        assert all(end is None or isinstance(end, bool | NotLoaded) for end in ends)
        given_up = asyncio.CancelledError | NotLoaded
        assert all(end is None or isinstance(end, given_up) for end in left)
        assert (lifecycle.num_active, lifecycle.num_waiting, model.num_users) == (0, 0, 0)
        assert model.num_faults == 0
        assert sum(lifecycle.counts.loads.values()) <= model.num_loads
        if unload_after_s is not None:
            async with asyncio.timeout(10):
                while model.is_loaded or lifecycle.state is ModelState.LOADING:
                    await asyncio.sleep(TICK_S)
        await lifecycle.close()

    asyncio.run(run())


@pytest.mark.anyio
async def test_a_failed_load_is_tried_again_after_a_while_and_twice_as_long() -> None:
    now = [0.0]
    model = Model(load_ticks=0, failing=[False, True, True])
    lifecycle = lifecycle_of(model, clock=lambda: now[0])
    for now_s, num_loads, retry_s in ((0.0, 1, 1), (0.9, 1, 1), (1.0, 2, 2), (2.9, 2, 1)):
        now[0] = now_s
        with pytest.raises(NotLoaded, match="by the script") as raised:
            await lifecycle.enter()
        assert (model.num_loads, raised.value.retry_after_s) == (num_loads, retry_s)
        assert (raised.value.status, lifecycle.state) == (503, ModelState.FAILED)
    now[0] = 3.0
    await lifecycle.enter()
    assert (lifecycle.state, lifecycle.failure) == (ModelState.LOADED, None)
    assert lifecycle.counts.loads == {"loaded": 1, "failed": 2}


@pytest.mark.anyio
async def test_whoever_administers_loads_without_waiting_for_the_next_try() -> None:
    model = Model(load_ticks=0, failing=[False, True])
    lifecycle = lifecycle_of(model)
    states = []
    for _ in range(3):
        await lifecycle.load()
        states.append(lifecycle.state)
    assert states == [ModelState.FAILED, ModelState.LOADED, ModelState.LOADED]
    assert model.num_loads == 2


@pytest.mark.anyio
async def test_so_many_wait_and_no_more() -> None:
    model = Model(load_ticks=20)
    lifecycle = lifecycle_of(model, limits=WaitLimits(2, 1000))
    waiting = [asyncio.create_task(model.use(lifecycle, 0)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 requests wait for the model to load"):
        await lifecycle.enter()
    await asyncio.gather(*waiting)
    await lifecycle.enter()


@pytest.mark.anyio
async def test_bodies_of_so_many_bytes_wait_and_no_more() -> None:
    model = Model(load_ticks=20)
    lifecycle = lifecycle_of(model)
    waiting = asyncio.create_task(lifecycle.enter(900))
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="wait for the model"):
        await lifecycle.enter(101)
    await lifecycle.enter(100)
    await waiting
    assert model.num_loads == 1


@pytest.mark.anyio
async def test_a_model_in_use_stays_if_it_is_used_for_too_long() -> None:
    model = Model()
    lifecycle = lifecycle_of(model)
    await lifecycle.enter()
    unloading = asyncio.create_task(lifecycle.unload(5 * TICK_S))
    await asyncio.sleep(0)
    assert lifecycle.state is ModelState.UNLOADING
    second = asyncio.create_task(lifecycle.enter())
    assert not await unloading
    await second
    assert (lifecycle.state, model.num_loads) == (ModelState.LOADED, 1)
    lifecycle.leave()
    lifecycle.leave()
    assert await lifecycle.unload(5 * TICK_S)
    assert lifecycle.counts.unloads == {UnloadReason.IDLE: 0, UnloadReason.ASKED: 1}
