"""Loads from slower stores that are recorded: who waits for them, and which blocks are taken."""

from collections.abc import Mapping, Sequence

from quire.cache.chain import Chain
from quire.cache.snapshot.digest_numbers import runs_of
from quire.cache.transfers import BlockPosition, IncomingBlock, Transfers
from quire.engine.recording.inputs import BlocksImported, ChainHashed, LoadEnded, LoadStarted
from quire.engine.recording.recorder import FlightRecorder
from quire.scheduler.accounts import Counters
from quire.scheduler.cost import CostModel
from quire.scheduler.prefix_waits import PrefixLoads
from quire.scheduler.reasons import LoadSource
from quire.scheduler.request import Request


class RecordedLoads(PrefixLoads):
    """Loads that also notify a recorder."""

    def __init__(
        self,
        recorder: FlightRecorder,
        requests: Mapping[str, Request],
        cost: CostModel,
        counters: Counters,
    ) -> None:
        super().__init__(requests, cost, counters)
        self._recorder = recorder

    def chain_of(self, request_id: str) -> tuple[Chain, int] | None:
        found = super().chain_of(request_id)
        answers = self._recorder.numbers.take()
        if answers:
            self._recorder.write(ChainHashed(request_id, answers))
        return found

    def begin(self, request_id: str, source: LoadSource) -> None:
        super().begin(request_id, source)
        self._recorder.write(LoadStarted(request_id, source, self._recorder.numbers.take()))

    def end(self, request_id: str, num_tokens: int, now: float) -> None:
        super().end(request_id, num_tokens, now)
        answers = self._recorder.numbers.take()
        self._recorder.write(LoadEnded(request_id, num_tokens, now, answers))


class RecordedTransfers(Transfers):
    """Transfers that also notify a recorder."""

    def __init__(self, recorder: FlightRecorder, transfers: Transfers) -> None:
        super().__init__(transfers._finder, transfers._log, transfers._states)
        self._recorder = recorder
        self._transfers = transfers  # which may be traced

    def take_in(
        self, chain: Chain, places: Sequence[BlockPosition], name: str = ""
    ) -> list[IncomingBlock]:
        taken = self._transfers.take_in(chain, places, name)
        numbers = self._recorder.numbers
        if not self._recorder.is_broken:
            numbers.learn(chain.digests)
            of_chain = runs_of(numbers.numbers(chain.digests))
            told = [(place.block_index, place.group) for place in places]
            self._recorder.write(BlocksImported(of_chain, told, taken, numbers.take()))
        return taken
