"""The answer to a request for a pinned prefix, once it is pinned."""

from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.apis.openai.response import GenerationResponse
from quire.server.errors import CONFLICT, RequestError
from quire.server.generation.answer_writer import UnstreamedWriter
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.output_delta import OutputDelta
from quire.server.generation.service import Service
from quire.server.models.model_prefixes import ModelPrefixes
from quire.server.models.pinned_prefix import PinnedPrefix, PrefixState, outcome_of


class PrefixAnswer(Response):
    """Computes a prefix that is kept among `prefixes`, and answers when it is pinned. It is kept no
    more where it cannot be, or where the client goes before."""

    def __init__(
        self,
        prefix: PinnedPrefix,
        prefixes: ModelPrefixes,
        generation: GenerationStream,
        service: Service,
    ) -> None:
        super().__init__()
        self._prefix = prefix
        self._prefixes = prefixes
        writer = _PrefixWriter(prefix, prefixes, generation)
        self._answer = GenerationResponse(generation, writer, service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            if self._prefix.is_new:
                self._prefixes.remove(self._prefix.id)


class _PrefixWriter(UnstreamedWriter):
    """Writes a prefix as one body. There is no stream of it."""

    def __init__(
        self, prefix: PinnedPrefix, prefixes: ModelPrefixes, generation: GenerationStream
    ) -> None:
        self._prefix = prefix
        self._prefixes = prefixes
        self._generation = generation

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        """Return the prefix. Raises RequestError where it is not pinned."""
        if self._prefixes.find(self._prefix.id) is None:
            raise RequestError(
                "The prefix was deleted, or has expired, while it was computed.",
                code="prefix_deleted",
                status=CONFLICT,
            )
        outcome = outcome_of(self._generation.finish_of(0))
        if outcome.state is PrefixState.LOST:
            raise RequestError(f"The prefix is not pinned: {outcome.why}.", code="not_pinned")
        self._prefixes.take(self._prefix, outcome)
        return msgspec.json.encode(self._prefixes.shown(self._prefix))
