"""The wire form of scores."""

import math
from array import array
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.engine.messages import ScoreFacts
from quire.server.apis.scoring.inputs import document_text
from quire.server.apis.scoring.protocol import (
    RerankBody,
    RerankedDocument,
    RerankRequest,
    RerankResult,
    Score,
    ScoreList,
    ScoreRequest,
    ScoringUsage,
)
from quire.server.generation.answer_writer import UnstreamedWriter
from quire.server.generation.context import RequestContext
from quire.server.generation.output_delta import OutputDelta

FLOAT32 = "f"
"""The code of an array of float32."""


class ScoreWriter(UnstreamedWriter):
    """Writes the scores of a request as one body. There is no stream of them."""

    def __init__(
        self, context: RequestContext, request: RerankRequest | ScoreRequest, facts: ScoreFacts
    ) -> None:
        self._context = context
        self._request = request
        self._is_sigmoid = facts.is_sigmoid and request.use_activation is not False

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        scores = [self._score(each.vector) for each in outputs]
        if isinstance(self._request, RerankRequest):
            return msgspec.json.encode(self._reranked(self._request, scores))
        context = self._context
        return msgspec.json.encode(
            ScoreList(
                id=context.id,
                created=context.created_s,
                model=context.model,
                data=tuple(Score(index=index, score=each) for index, each in enumerate(scores)),
                usage=self._usage(),
            )
        )

    def _reranked(self, request: RerankRequest, scores: Sequence[float]) -> RerankBody:
        """Return the best documents, the best first; of equals the first comes first."""
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
        results = tuple(
            RerankResult(index, scores[index], self._document(request, index)) for index in order
        )
        return RerankBody(self._context.id, self._context.model, results, self._usage())

    def _document(self, request: RerankRequest, index: int) -> RerankedDocument | UnsetType:
        if not request.return_documents:
            return UNSET
        return RerankedDocument(document_text(request.documents[index]))

    def _usage(self) -> ScoringUsage:
        num_tokens = self._context.num_prompt_tokens
        return ScoringUsage(num_tokens, num_tokens)

    def _score(self, vector: bytes) -> float:
        (number,) = array(FLOAT32, vector)
        return sigmoid(number) if self._is_sigmoid else number


def sigmoid(number: float) -> float:
    """Return 1 / (1 + exp(-number)), of any size of number."""
    if number >= 0:
        return 1 / (1 + math.exp(-number))
    return math.exp(number) / (1 + math.exp(number))
