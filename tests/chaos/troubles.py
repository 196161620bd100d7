"""The troubles of a server in a storm: each lasts until its coroutine returns."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import psutil

from tests.chaos.injectors import engine_of, freeze, hit
from tests.chaos.subject import Subject
from tests.chaos.visits import Visitors
from tests.chaos.world import World

HOUR_S = 3600.0


@dataclass(slots=True)
class Trouble:
    """What troubles work on. `hits_s` are the moments at which an engine was ended."""

    subject: Subject
    world: World | None
    visitors: Visitors
    draw: random.Random
    hits_s: list[float] = field(default_factory=list)

    async def kill(self) -> None:
        """End the engine that serves, and wait for the next one."""
        self.hits_s.append(await hit(self.subject, signal.SIGKILL))
        await engine_of(self.subject)

    async def kill_twice(self) -> None:
        """End the engine, and whatever other process of an engine there is while it comes back."""
        self.hits_s.append(await hit(self.subject, signal.SIGKILL))
        await asyncio.sleep(self.draw.uniform(0, 1.5))
        for process in await asyncio.to_thread(self.subject.engines):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        await engine_of(self.subject)

    async def stop(self) -> None:
        """Stop the engine for good: only the server can end it."""
        engine = await engine_of(self.subject)
        self.hits_s.append(time.monotonic())
        engine.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(self.subject.wait_gone, engine)
        await engine_of(self.subject)

    async def freeze(self) -> None:
        """Stop the engine for a moment."""
        await freeze(self.subject, self.draw.uniform(0.1, 0.8))

    async def turn_clock(self) -> None:
        """Let the wall clock jump by up to two hours either way: batches live for a day."""
        if self.world is not None:
            self.world.turn_clock(self.draw.uniform(-2 * HOUR_S, 2 * HOUR_S))

    async def fill_disk(self) -> None:
        """Let the disk be full for a while."""
        if self.world is not None:
            self.world.fill_disk(True)
            await asyncio.sleep(self.draw.uniform(0.3, 2.0))
            self.world.fill_disk(False)

    async def reset_cache(self) -> None:
        """Empty the prefix cache."""
        await asyncio.to_thread(self.subject.post, "/reset_prefix_cache", {})

    async def reload(self) -> None:
        """Unload the model and load it again."""
        name = self.subject.model
        self.visitors.num_refusing += 1
        self.visitors.num_refusals += 1
        try:
            for act in ("unload", "load"):
                await asyncio.to_thread(self.subject.post, f"/v1/models/{name}/{act}", {})
            await engine_of(self.subject)
        finally:
            self.visitors.num_refusing -= 1


TROUBLES: Mapping[Callable[[Trouble], Awaitable[None]], int] = {
    Trouble.kill: 6,
    Trouble.kill_twice: 1,
    Trouble.stop: 1,
    Trouble.freeze: 3,
    Trouble.turn_clock: 2,
    Trouble.fill_disk: 2,
    Trouble.reset_cache: 1,
    Trouble.reload: 1,
}
"""How often each is drawn, in parts."""
