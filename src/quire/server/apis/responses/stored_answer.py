"""An answer that is stored before its end is sent, so that what the client asks next finds it."""

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.server.apis.responses.protocol import ResponseBody
from quire.server.apis.responses.writer import ItemWriter


class StoredAnswer(Response):
    """Sends an answer that `writer` writes, and calls `store` with the response once it is
    whole."""

    def __init__(
        self, answer: Response, writer: ItemWriter, store: Callable[[ResponseBody], None]
    ) -> None:
        super().__init__()
        self._answer = answer
        self._writer = writer
        self._store = store
        self._is_stored = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def store_and_send(message: Message) -> None:
            if self._writer.ended is not None and not self._is_stored:
                self._is_stored = True
                self._store(self._writer.ended)
            await send(message)

        await self._answer(scope, receive, store_and_send)
