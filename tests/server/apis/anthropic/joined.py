"""Joins the events of a stream as Anthropic's clients do."""

import json
from collections.abc import Iterable, Mapping

import httpx
from pydantic_core import from_json

DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def events(reply: httpx.Response) -> list[dict[str, object]]:
    """The events of a stream, each under the name of its type; comment lines are left out."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            found.append(event)
    return found


def joined_blocks(given: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """The content blocks of a stream; at any time one of them is open at most."""
    blocks: list[dict[str, object]] = []
    inputs: dict[int, str] = {}
    is_open = False
    for event in given:
        if not str(event["type"]).startswith("content_block"):
            continue
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(blocks)
            block = event["content_block"]
            assert isinstance(block, dict)
            blocks.append(block)
        else:
            assert is_open and event["index"] == len(blocks) - 1
        is_open = event["type"] != "content_block_stop"
        if event["type"] == "content_block_delta":
            _add(event["delta"], blocks[-1], inputs, len(blocks) - 1)
    assert not is_open
    for index, text in inputs.items():
        blocks[index]["input"] = from_json(text, allow_partial=True)
    return blocks


def _add(delta: object, block: dict[str, object], inputs: dict[int, str], index: int) -> None:
    assert isinstance(delta, dict)
    field = DELTAS[delta["type"]]
    if field == "partial_json":
        inputs[index] = inputs.get(index, "") + delta[field]
    else:
        block[field] = f"{block[field]}{delta[field]}"
