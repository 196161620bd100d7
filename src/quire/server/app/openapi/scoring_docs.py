"""The rows of the routes of rerankers in the document of the API."""

from collections.abc import Mapping

from quire.server.app.openapi import scoring_examples as examples
from quire.server.app.openapi.route_doc import ResponseDoc, RouteDoc
from quire.server.errors import NOT_FOUND, TOO_LARGE, TOO_LATE, TOO_MANY, UNAVAILABLE
from quire.server.errors import UNSUPPORTED_MEDIA as MEDIA
from quire.server.generation.protocol.capabilities import RERANK_PATHS, SCORE_PATHS

ERRORS = (TOO_LARGE, MEDIA, UNAVAILABLE, NOT_FOUND, TOO_MANY, TOO_LATE)
RERANK_DOC = RouteDoc(
    "Documents in the order in which they go with a query, by a cross-encoder.",
    {200: (ResponseDoc(examples.RERANK),)},
    ERRORS,
    examples.RERANK_REQUESTS,
    headers=("x-quire-warnings",),
)
SCORE_DOC = RouteDoc(
    "Scores of pairs of texts, by a cross-encoder.",
    {200: (ResponseDoc(examples.SCORES),)},
    ERRORS,
    examples.SCORE_REQUESTS,
    headers=("x-quire-warnings",),
)
SCORING_ROUTES: Mapping[str, RouteDoc] = {
    **dict.fromkeys(RERANK_PATHS, RERANK_DOC),
    **dict.fromkeys(SCORE_PATHS, SCORE_DOC),
}
