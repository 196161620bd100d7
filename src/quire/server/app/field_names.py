"""The fields of requests by name, for logs: what a client has named itself is no part of a log."""

import re
from collections.abc import Iterator

from pydantic import BaseModel

from quire.server.apis.protocol.capabilities import capabilities_of
from quire.server.apis.protocol.parse import models_in
from quire.server.app.apis import ALL_BODIES

_SEGMENT = re.compile(r"([A-Za-z_]+)((?:\[\d+\])*)")
_OTHERS = (
    *("after", "arguments", "body", "budget_tokens", "cache_control", "call_id", "custom_id"),
    *("display", "file", "format", "id", "input", "input_schema", "is_error", "item_reference"),
    *("json_schema", "limit", "method", "order", "output", "prompt_cache_breakpoint", "purpose"),
    *("schema", "signature", "source", "starting_after", "status", "summary", "text", "thinking"),
    *("tool_use_id", "type", "url", "user_id"),
)
"""Names of fields that no model describes: of items, blocks, queries and lines of batches."""


def _names() -> Iterator[str]:
    left = [model for models in ALL_BODIES.values() for model in models]
    seen: set[type[BaseModel]] = set()
    for path, models in ALL_BODIES.items():
        for model in models:
            yield from capabilities_of(path, model)
    while left:
        model = left.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, field in model.model_fields.items():
            yield name
            left += models_in(field.annotation)


_KNOWN = frozenset((*_names(), *_OTHERS))


def known_part(path: str | None) -> str | None:
    """Return the part of a field's path up to the first name that is not of the API, such as that
    of a property in a client's schema; None where nothing is left."""
    known: list[str] = []
    for segment in (path or "").split("."):
        match = _SEGMENT.fullmatch(segment)
        if match is None or match[1] not in _KNOWN:
            break
        known.append(segment)
    return ".".join(known) or None
