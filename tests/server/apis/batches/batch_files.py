"""Batch files for tests."""

import json
from collections.abc import Iterable
from pathlib import Path

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"


def line(custom_id: str, url: str = COMPLETIONS, **body: object) -> dict[str, object]:
    """One line's request."""
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def encode(lines: Iterable[object]) -> bytes:
    """Lines as the bytes of a file."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def greedy_lines(model: str, num_lines: int, max_tokens: int) -> list[dict[str, object]]:
    """Greedy requests of both endpoints, no two alike."""
    greedy: dict[str, object] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return [
        line(f"line-{number}", COMPLETIONS, prompt=f"{number} lords,", **greedy)
        if number % 2
        else line(
            f"line-{number}",
            CHAT,
            messages=[{"role": "user", "content": f"Count {number}."}],
            **greedy,
        )
        for number in range(num_lines)
    ]


def texts(path: Path) -> dict[str, str]:
    """The text of each answer of a file, by its id. Raises AssertionError for an id that comes
    twice, or an answer that is an error."""
    found: dict[str, str] = {}
    for raw in path.read_bytes().splitlines():
        answer = json.loads(raw)
        assert answer["custom_id"] not in found
        assert answer["error"] is None and answer["response"]["status_code"] == 200, answer
        (choice,) = answer["response"]["body"]["choices"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        found[answer["custom_id"]] = text
    return found
