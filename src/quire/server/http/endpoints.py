"""The paths of the APIs' endpoints that errors, documents and other modules name."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
USAGE = "/v1/usage"
EMBEDDINGS = "/v1/embeddings"
CACHE_PROBE = "/v1/cache/probe"
PREFIXES = "/v1/prefixes"
RERANK_PATHS = (RERANK := "/v1/rerank", "/rerank", "/v2/rerank")
SCORE_PATHS = (SCORE := "/v1/score", "/score")
