"""Rerankers: what the application is handed."""

from quire.server.apis.api import Api
from quire.server.apis.route_doc import GENERATES, ResponseDoc, RouteDoc, ok
from quire.server.apis.scoring import examples
from quire.server.apis.scoring.protocol import RerankRequest, ScoreRequest
from quire.server.apis.scoring.routes import ScoringRoutes
from quire.server.http.endpoints import RERANK_PATHS, SCORE_PATHS

RERANK_DOC = RouteDoc(
    "Documents in the order in which they go with a query, by a cross-encoder.",
    ok(ResponseDoc(examples.RERANK)),
    GENERATES,
    examples.RERANK_REQUESTS,
    headers=("x-quire-warnings",),
)
SCORE_DOC = RouteDoc(
    "Scores of pairs of texts, by a cross-encoder.",
    ok(ResponseDoc(examples.SCORES)),
    GENERATES,
    examples.SCORE_REQUESTS,
    headers=("x-quire-warnings",),
)
SCORING = Api(
    ScoringRoutes,
    {
        **dict.fromkeys(RERANK_PATHS, (RerankRequest,)),
        **dict.fromkeys(SCORE_PATHS, (ScoreRequest,)),
    },
    {**dict.fromkeys(RERANK_PATHS, RERANK_DOC), **dict.fromkeys(SCORE_PATHS, SCORE_DOC)},
)
