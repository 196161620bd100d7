"""Responses that run without the connection that asked for them: the client comes back for what
they are by now."""

import asyncio
import logging
from collections.abc import Callable

from quire.server.apis.openai.response import whole_answer
from quire.server.apis.responses.protocol import ResponseBody
from quire.server.apis.responses.writer import ItemWriter
from quire.server.errors import SERVER_ERROR, RequestError
from quire.server.generation.generation_stream import GenerationStream
from quire.server.observability.metrics import FinishReason

logger = logging.getLogger(__name__)

CANCEL_WITHIN_S = 1.0
"""A response that is cancelled keeps what the engine had made of it, if it says so within this."""


class BackgroundRun:
    """Runs a generation that the engine has taken. `on_end` is given the response that has
    ended."""

    def __init__(
        self,
        generation: GenerationStream,
        writer: ItemWriter,
        on_end: Callable[[ResponseBody], None],
    ) -> None:
        self._generation = generation
        self._writer = writer
        self._on_end = on_end
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._end)

    def body(self) -> ResponseBody:
        """Return the response as it is now."""
        return self._writer.running()

    def stop(self) -> None:
        """End the run at once, and keep nothing of it."""
        self._task.cancel()

    async def cancel(self) -> None:
        """End the run, and wait until it has."""
        self._generation.abort(FinishReason.ABORT)
        await asyncio.wait({self._task}, timeout=CANCEL_WITHIN_S)
        self._task.cancel()
        await asyncio.wait({self._task})

    def _end(self, task: asyncio.Task[ResponseBody]) -> None:
        self._generation.abort(FinishReason.ABORT)
        self._generation.close()
        self._on_end(self._writer.stopped() if task.cancelled() else task.result())

    async def _run(self) -> ResponseBody:
        """Return the response once it has ended or failed."""
        try:
            await whole_answer(self._generation, self._writer)
        except RequestError as error:
            self._generation.abort(FinishReason.ERROR)
            return self._writer.failed(error)
        except Exception:
            name = self._generation.context.id
            logger.exception("response %s failed", name)
            self._generation.abort(FinishReason.ERROR)
            message = f"Internal error; the server's log has response {name}."
            return self._writer.failed(RequestError(message, code="internal", status=SERVER_ERROR))
        assert self._writer.ended is not None
        return self._writer.ended
