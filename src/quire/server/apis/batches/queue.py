"""The batches of a server: run in the background, one of each key at a time, on what live requests
leave of the engine.

A batch that runs when the server ends goes on when a server has its directory again; what it has
answered is told by its files.
"""

import asyncio
import logging

from quire.server.apis.batches.answer_log import AnswerLogError
from quire.server.apis.batches.batch_run import BatchStopped
from quire.server.apis.batches.batch_turn import BatchTurn
from quire.server.apis.batches.line_runner import LineRunner
from quire.server.apis.batches.line_slots import LineSlots
from quire.server.apis.batches.store import BatchStore, StoredBatch
from quire.server.generation.service import Service

logger = logging.getLogger(__name__)

TICK_S = 0.05
BURST = 4
"""So many lines begin in one tick at most, beside those that take the place of others."""
KEPT_FREE = 4
"""One in so many places of the engine is kept free for live requests."""
MAX_RUNNING = 8
"""So many batches run at once, each of another key."""
EXPIRE_EVERY_S = 60.0
RETRY_S = 10.0
"""A batch that could not go on is tried again in so many seconds."""


class BatchQueue:
    """Runs the unfinished batches of a store."""

    def __init__(self, store: BatchStore, service: Service) -> None:
        self.store = store
        self._service = service
        self._turns: dict[str, tuple[BatchTurn, asyncio.Task[None]]] = {}
        self._working: asyncio.Task[None] | None = None

    def start(self, runner: LineRunner) -> None:
        """Begin with the oldest; the service must be ready."""
        num_seqs = sum(
            model.config.engine.scheduling.max_num_seqs for model in self._service.models
        )
        max_lines = max(num_seqs - num_seqs // KEPT_FREE, 1)
        slots = LineSlots(max_lines, self._num_live_waiting, BURST)
        self._working = asyncio.create_task(self._work(runner, slots))

    def _num_live_waiting(self) -> int:
        """Return how many requests wait for room, never more than are open: lines of batches are
        among them, but not all of those that wait are lines where live requests are open."""
        models = self._service.models
        waiting = sum(model.metrics.stats.num_waiting_for_capacity for model in models)
        return min(waiting, self._service.num_open)

    async def _work(self, runner: LineRunner, slots: LineSlots) -> None:
        clock = self._service.sources.clock
        expire_s = clock()
        while True:
            if clock() >= expire_s:
                expire_s = clock() + EXPIRE_EVERY_S
                await self._expire()
            slots.tick()
            self._reap()
            if not (self._service.draining or self._service.is_down):
                self._begin(runner, slots)
            self._measure(slots)
            await asyncio.sleep(TICK_S)

    async def _expire(self) -> None:
        try:
            await self.store.expire()
        except OSError:
            logger.exception("files of batches cannot be deleted")

    def _reap(self) -> None:
        for batch_id in [each for each, (_, task) in self._turns.items() if task.done()]:
            _, task = self._turns.pop(batch_id)
            if not task.cancelled() and task.exception() is not None:
                logger.error("batch %s crashed", batch_id, exc_info=task.exception())

    def _begin(self, runner: LineRunner, slots: LineSlots) -> None:
        busy = {self.store.batches[each].owner for each in self._turns}
        for stored in self.store.unfinished():
            if len(self._turns) < MAX_RUNNING and stored.owner not in busy:
                busy.add(stored.owner)
                turn = BatchTurn(stored.batch.id, self.store, self._service)
                task = asyncio.create_task(self._take(turn, stored.batch.id, runner, slots))
                self._turns[stored.batch.id] = turn, task

    async def _take(
        self, turn: BatchTurn, batch_id: str, runner: LineRunner, slots: LineSlots
    ) -> None:
        try:
            await turn.run(runner, slots)
        except BatchStopped as stopped:
            logger.info("batch %s is gone on with later: %s", batch_id, stopped)
            await asyncio.sleep(RETRY_S)
        except (OSError, AnswerLogError) as error:
            logger.error("batch %s: %s; it is tried again in %g s", batch_id, error, RETRY_S)
            await asyncio.sleep(RETRY_S)

    def _measure(self, slots: LineSlots) -> None:
        counts = self._service.metrics.batches
        counts.num_running_lines = slots.num_held
        counts.num_batches["running"] = len(self._turns)
        counts.num_batches["waiting"] = sum(
            each.batch.id not in self._turns for each in self.store.unfinished()
        )
        counts.num_file_bytes = sum(each.file.bytes for each in self.store.files.values())

    async def cancel(self, stored: StoredBatch) -> None:
        """Cancel a batch that is not finished; its lines that run end. Raises OSError."""
        cancelling_at = int(self.store.now())
        changed = stored.changed(status="cancelling", cancelling_at=cancelling_at)
        await self.store.save_batch(changed)
        if stored.batch.id in self._turns:
            self._turns[stored.batch.id][0].cancel()

    async def close(self) -> None:
        """Stop; what runs is gone on with when a server has the directory again."""
        tasks = [task for _, task in self._turns.values()]
        tasks += [] if self._working is None else [self._working]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.store.close()
