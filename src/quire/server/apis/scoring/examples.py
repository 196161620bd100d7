"""Requests for scores that any reranker answers, and answers as they come."""

from collections.abc import Mapping

from quire.server.apis.descriptions import CREATED_S
from quire.server.apis.scoring.protocol import (
    RerankBody,
    RerankedDocument,
    RerankResult,
    Score,
    ScoreList,
    ScoringUsage,
)
from quire.server.config import BUNDLED_MODEL_NAME as MODEL

_USAGE = ScoringUsage(12, 12)
RERANK_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "documents": {"query": "Who is the king?", "documents": ["The king is dead.", "It rains."]},
}
RERANK = RerankBody(
    "rerank-0123456789abcdef",
    MODEL,
    (RerankResult(0, 0.75, RerankedDocument("The king is dead.")), RerankResult(1, 0.25)),
    _USAGE,
)
SCORE_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "pairs": {"text_1": "Who is the king?", "text_2": ["The king is dead.", "It rains."]},
}
SCORES = ScoreList(
    id="score-0123456789abcdef",
    created=CREATED_S,
    model=MODEL,
    data=(Score(index=0, score=0.75), Score(index=1, score=0.25)),
    usage=_USAGE,
)
