"""What is logged when the server is ready: where it is, and a request to try."""

import json
import shlex

from quire.server.config import ServerConfig

PROMPT = "Once upon a time"
NUM_TOKENS = 40
AUTHORIZATION = "Authorization: Bearer YOUR_KEY"
"""Keys are not printed: whoever starts the server knows where they are."""


def ready_text(config: ServerConfig, url: str, took_s: float) -> str:
    """Two lines; the second can be pasted into a shell."""
    model = config.served_model_names[0]
    body = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS}
    headers = ["Content-Type: application/json", *([AUTHORIZATION] if config.api_keys else ())]
    words = ["curl", f"{url}/v1/completions"]
    for header in headers:
        words += ["-H", header]
    words += ["-d", json.dumps(body, ensure_ascii=False)]
    return f"ready at {url} after {took_s:.1f} s; try\n  {shlex.join(words)}"
