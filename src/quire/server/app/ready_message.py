"""The message that is logged when the server is ready: its address, and a request to try."""

import json
import shlex
from collections.abc import Mapping

from quire.server.config import ServerConfig

QUESTION = "What is the capital of France?"
PROMPT = "Once upon a time"
NUM_TOKENS = 40
MIN_SHOWN_S = 0.05
AUTHORIZATION = "Authorization: Bearer YOUR_KEY"
"""Keys are not printed: the operator knows where they are."""


def ready_text(
    config: ServerConfig, url: str, startup_s: Mapping[str, float], *, is_chat: bool
) -> str:
    """Return two lines; the second can be pasted into a shell. It is a chat where `is_chat`.

    startup_s: seconds by phase and in `total`; a phase that took next to nothing is left out.
        Where no model is loaded yet it is empty.
    """
    asked: Mapping[str, object] = {"prompt": PROMPT}
    if is_chat:
        asked = {"messages": [{"role": "user", "content": QUESTION}]}
    body = {"model": config.model.name, **asked, "max_tokens": NUM_TOKENS}
    headers = ["Content-Type: application/json", *([AUTHORIZATION] if config.api_keys else ())]
    words = ["curl", f"{url}/v1/{'chat/' if is_chat else ''}completions"]
    for header in headers:
        words += ["-H", header]
    words += ["-d", json.dumps(body, ensure_ascii=False)]
    phases = [(phase, took_s) for phase, took_s in startup_s.items() if phase != "total"]
    where = ", ".join(f"{phase} {took_s:.1f}" for phase, took_s in phases if took_s >= MIN_SHOWN_S)
    took = f" after {startup_s['total']:.1f} s" if startup_s else ""
    took += f" ({where})" if where else ""
    return f"ready at {url}{took}; try\n  {shlex.join(words)}"
