"""The protocol of whatever carries calls to the replicas of a model: Ray Serve, or in the tests an
event loop.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from quire.engine.messages import EngineFacts
from quire.engines.ray.messages import Call


class ReplicaLost(Exception):
    """A replica does not answer a call any more; the text is for people."""


class Replicas(Protocol):
    """The replicas of a model. Each call goes to one, which is chosen by the call's `prompt` and by
    load unless the call names one that is there still."""

    @property
    def progress(self) -> tuple[str, int, int]:
        """The phase of the start, how much of it is done, and of how much."""

    async def start(self) -> EngineFacts:
        """Return the facts of an engine, once enough replicas are there. Raises EngineDown."""

    def generate(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Yield the items of a request. Raises ReplicaLost."""

    async def order(self, call: Call) -> bytes:
        """Return what a replica answers to an order. Raises ReplicaLost."""

    async def order_all(self, call: Call) -> list[bytes]:
        """Return what each replica answers to an order. Raises ReplicaLost if one does not."""

    async def close(self) -> None:
        """End what `start` has started."""
