"""Replicas on the event loop of the test: the naive twin of those on Ray Serve."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engine.messages import EngineFacts
from quire.engines.process.token_stream import EngineDown
from quire.engines.ray.messages import Call, decode_facts
from quire.engines.ray.replica import Replica
from quire.engines.ray.replicas import ReplicaLost


class LocalReplicas:
    """Replicas that take requests in turn. `lose` one: every call to it ends as if it had died, and
    another of the same configuration takes its place."""

    def __init__(self, config: EngineConfig, num: int, max_restarts: int = 20) -> None:
        self._supervision = SupervisionConfig(max_restarts, engine_standby=False)
        self._config = config
        self._num_made = 0
        self._num_calls = 0
        self.replicas = [self._made() for _ in range(num)]
        self.calls: list[tuple[str, str]] = []
        self.num_items = 0
        self._is_gone: dict[str, asyncio.Event] = {}

    @property
    def progress(self) -> tuple[str, int, int]:
        return "replicas", 0, len(self.replicas)

    def _made(self) -> Replica:
        self._num_made += 1
        return Replica(f"replica-{self._num_made}", self._config, self._supervision)

    async def start(self) -> EngineFacts:
        await asyncio.gather(*(each.start() for each in self.replicas))
        return decode_facts(self.replicas[0].facts())

    def _chosen(self, call: Call) -> Replica:
        for each in self.replicas:
            if each.name == call.replica:
                return each
        self._num_calls += 1
        return self.replicas[self._num_calls % len(self.replicas)]

    async def generate(self, call: Call) -> AsyncGenerator[bytes, None]:
        replica = self._chosen(call)
        gone = self._is_gone.setdefault(replica.name, asyncio.Event())
        request_id = msgspec.msgpack.decode(call.body)[1]["id"]
        self.calls.append((request_id, replica.name))
        try:
            async with aclosing(replica.generate(call)) as items:
                async for item in items:
                    if gone.is_set():
                        raise ReplicaLost(f"{replica.name} has died")
                    self.num_items += 1
                    yield item
        except EngineDown as error:
            raise ReplicaLost(str(error)) from error

    async def lose(self, name: str) -> None:
        """End a replica."""
        (lost,) = (each for each in self.replicas if each.name == name)
        self.replicas.remove(lost)
        self._is_gone[name].set()
        await lost.close()

    async def order(self, call: Call) -> bytes:
        return await self._chosen(call).order(call)

    async def order_all(self, call: Call) -> list[bytes]:
        return [await each.order(call) for each in self.replicas]

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self.replicas))
