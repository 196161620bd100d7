"""The wire form of embeddings."""

import base64
import sys
from array import array
from collections.abc import Sequence

import msgspec

from quire.server.apis.embeddings.protocol import (
    Embedding,
    EmbeddingList,
    EmbeddingUsage,
    EncodingFormat,
)
from quire.server.generation.answer_writer import UnstreamedWriter
from quire.server.generation.context import RequestContext
from quire.server.generation.output_delta import OutputDelta

FLOAT32 = "f"
"""The code of an array of float32."""


class EmbeddingWriter(UnstreamedWriter):
    """Writes the vectors of a request as one body. There is no stream of them."""

    def __init__(self, context: RequestContext, encoding_format: EncodingFormat | None) -> None:
        self._context = context
        self._is_base64 = encoding_format is EncodingFormat.BASE64

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        """Encode vector by vector: another thread runs between calls of the encoder, never
        within."""
        context, num_tokens = self._context, self._context.num_prompt_tokens
        vectors = (self._encoded(index, each.vector) for index, each in enumerate(outputs))
        whole = EmbeddingList(
            id=context.id,
            created=context.created_s,
            model=context.model,
            data=(),
            usage=EmbeddingUsage(num_tokens, num_tokens),
        )
        data = tuple(msgspec.Raw(each) for each in vectors)
        return msgspec.json.encode(msgspec.structs.replace(whole, data=data))

    def _encoded(self, index: int, vector: bytes) -> bytes:
        numbers = array(FLOAT32, vector)
        if not self._is_base64:
            return msgspec.json.encode(Embedding(index=index, embedding=tuple(numbers)))
        if sys.byteorder == "big":
            numbers.byteswap()
        text = base64.b64encode(numbers.tobytes()).decode()
        return msgspec.json.encode(Embedding(index=index, embedding=text))
