"""The questions to an engine that are not answered yet."""

import asyncio
from collections.abc import Callable, Iterable

from quire.engine.messages import EngineQuery
from quire.engine.orders import Answer, Question
from quire.engines.process.token_stream import EngineDown, RequestRefused
from quire.scheduler.reasons import Reason
from quire.scheduler.step import Refusal

MAX_QUESTIONS = 32
"""So many questions may be unanswered."""


class Questions:
    """Asks an engine, and hands its answers to those who wait."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._num_asked = 0

    async def ask(self, send: Callable[[EngineQuery], None], question: Question) -> Answer:
        """Return the answer of the engine when it has read this, between two steps. Raises
        EngineDown if it ends first, and RequestRefused if too many questions are unanswered."""
        self._num_asked += 1
        asked_id = f"question-{self._num_asked}"
        if len(self._answers) >= MAX_QUESTIONS:
            message = f"the engine has not answered {len(self._answers)} questions"
            raise RequestRefused(Refusal(asked_id, Reason.QUEUE_FULL, message))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[asked_id] = answer
        send(EngineQuery(asked_id, question))
        try:
            return await answer
        finally:
            del self._answers[asked_id]

    def take(self, answers: Iterable[tuple[str, Answer]]) -> None:
        """Hand the answers of an engine to those who wait for them."""
        for asked_id, found in answers:
            answer = self._answers.get(asked_id)
            if answer is not None and not answer.done():
                answer.set_result(found)

    def fail(self, reason: str) -> None:
        """Tell all who wait that the engine has ended."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineDown(reason))
