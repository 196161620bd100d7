"""The engine as the server sees it: an `EngineSupervisor`, several of them as one, or a scripted
engine in the tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from quire.engine.config import EngineConfig
from quire.engine.messages import EngineFacts
from quire.engine.orders import Answer, Order, Question
from quire.engines.process.client import EnginePhase
from quire.engines.process.flight_ring import FlightRing
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.token_stream import TokenStream
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Stats


class EngineProcess(Protocol):
    """One engine process of this machine."""

    @property
    def process_id(self) -> int | None: ...

    @property
    def ring(self) -> FlightRing | None: ...


class EngineProtocol(Protocol):
    """The part of an `EngineSupervisor` that the server uses, whose docstrings say what each part
    means."""

    @property
    def phase(self) -> EnginePhase: ...

    @property
    def progress(self) -> tuple[str, int, int]: ...

    @property
    def facts(self) -> EngineFacts | None: ...

    @property
    def down_reason(self) -> str | None: ...

    @property
    def lacks_memory(self) -> bool: ...

    @property
    def processes(self) -> Sequence[EngineProcess]: ...

    @property
    def standby_id(self) -> int | None: ...

    @property
    def stats_by_replica(self) -> Mapping[str, Stats]: ...

    @property
    def num_unfinished(self) -> int: ...

    async def start(self) -> None: ...

    def submit(self, request: NewRequest) -> TokenStream: ...

    def abort(self, request_id: str) -> None: ...

    def order(self, order: Order) -> None: ...

    async def ask(self, question: Question) -> Answer: ...

    def last_progress_age_s(self) -> float: ...

    async def close(self) -> None: ...


OpenEngine: TypeAlias = Callable[[EngineConfig, EngineSubscriber], EngineProtocol]
