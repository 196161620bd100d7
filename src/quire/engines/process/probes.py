"""The questions about the prefix cache that are not answered yet."""

import asyncio
from collections.abc import Callable, Iterable

from quire.cache.sharing import SharingTerms
from quire.engine.messages import Probe
from quire.engines.process.token_stream import EngineDown, Refused
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.scheduler.step import Refusal

MAX_PROBES = 32
"""So many probes of the prefix cache may be unanswered."""


class Probes:
    """Asks an engine, and hands its answers to those who wait."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[PrefixProbe]] = {}
        self._num_asked = 0

    async def ask(
        self, send: Callable[[Probe], None], token_ids: tuple[int, ...], sharing: SharingTerms
    ) -> PrefixProbe:
        """Return what of a prompt is cached when the engine has read this, between two steps.
        Raises EngineDown if it ends first, and Refused if too many probes are unanswered."""
        self._num_asked += 1
        probe_id = f"probe-{self._num_asked}"
        if len(self._answers) >= MAX_PROBES:
            message = f"the engine has not answered {len(self._answers)} probes"
            raise Refused(Refusal(probe_id, Reason.QUEUE_FULL, message))
        answer: asyncio.Future[PrefixProbe] = asyncio.get_running_loop().create_future()
        self._answers[probe_id] = answer
        send(Probe(probe_id, token_ids, sharing))
        try:
            return await answer
        finally:
            del self._answers[probe_id]

    def take(self, found: Iterable[tuple[str, PrefixProbe]]) -> None:
        """Hand the answers of an engine to those who wait for them."""
        for probe_id, probe in found:
            answer = self._answers.get(probe_id)
            if answer is not None and not answer.done():
                answer.set_result(probe)

    def fail(self, reason: str) -> None:
        """Tell all who wait that the engine has ended."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineDown(reason))
