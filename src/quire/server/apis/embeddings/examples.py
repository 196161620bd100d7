"""Embedding requests that any server answers, and an answer as it comes."""

from collections.abc import Mapping

from quire.server.apis.descriptions import CREATED_S
from quire.server.apis.embeddings.protocol import Embedding, EmbeddingList, EmbeddingUsage
from quire.server.config import BUNDLED_MODEL_NAME as MODEL

EMBEDDING_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "texts": {"input": ["Once upon a time", "The end."]},
    "tokens": {"input": [5, 6, 7], "encoding_format": "base64", "dimensions": 4},
}
EMBEDDINGS = EmbeddingList(
    id="embd-0123456789abcdef",
    created=CREATED_S,
    model=MODEL,
    data=(Embedding(index=0, embedding=(0.6, 0.8)), Embedding(index=1, embedding="mpkZP83MTD8=")),
    usage=EmbeddingUsage(7, 7),
)
