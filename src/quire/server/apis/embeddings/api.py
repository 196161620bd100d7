"""Embeddings: what the application is handed."""

from quire.server.apis.api import Api
from quire.server.apis.embeddings import examples as embedding_examples
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.embeddings.routes import EmbeddingRoutes
from quire.server.apis.route_doc import GENERATES, ResponseDoc, RouteDoc, ok
from quire.server.http.endpoints import EMBEDDINGS

EMBEDDINGS_API = Api(
    EmbeddingRoutes,
    {EMBEDDINGS: (EmbeddingRequest,)},
    {
        EMBEDDINGS: RouteDoc(
            "A vector for each text.",
            ok(ResponseDoc(embedding_examples.EMBEDDINGS)),
            GENERATES,
            embedding_examples.EMBEDDING_REQUESTS,
            headers=("x-quire-warnings",),
        ),
    },
)
