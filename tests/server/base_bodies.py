"""The least that each endpoint answers."""

from quire.server.http.endpoints import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCORE,
)

BASE: dict[str, dict[str, object]] = {
    COMPLETIONS: {"prompt": "x", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    RESPONSES: {"input": "x", "max_output_tokens": 1},
    EMBEDDINGS: {"input": "x"},
    RERANK: {"query": "x", "documents": ["y"]},
    SCORE: {"text_1": "x", "text_2": "y"},
    MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
}
