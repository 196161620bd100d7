"""Bodies that are wrong, made from right ones by a seeded generator: one fault, or several."""

import json
import random
from collections.abc import Iterator

PATHS = ("/v1/completions", "/v1/chat/completions")

FIELDS = (
    *("model", "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n"),
    *("stop", "stream", "stream_options", "logprobs", "top_logprobs", "logit_bias", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "stop_token_ids"),
    *("min_tokens", "ignore_eos", "echo", "cache_salt", "tools", "response_format", "best_of"),
    *("max_completion_tokens", "return_token_ids", "suffix"),
    *("allowed_token_ids", "bad_words"),
)

# For every field above, each of these is of a wrong type or out of its range.
WRONG: tuple[object, ...] = (
    *({"a": {"b": [1]}}, [[[]]], [None], [{"x": 1}], -(10**20), 10**400, 1.5e300, -15.5),
    *([True, False], [1.5], ["", 3], {"": ""}),
)

RAW = (
    *(b"", b"{", b"null", b"true", b'"x"', b"[1]", b"\xff", b"\x00", b"{}", b"{]", b'{"prompt"}'),
    *(b'{"prompt": "\\ud800"}', b'{"prompt": "\\udc00x"}', b'{"prompt": NaN}', b"[" * 5000),
    *(b'{"a":' * 3000, b'{"prompt": "x", "max_tokens": 1e999}', b"\xef\xbb\xbf{}"),
)

NAMES = ("promt", "temprature", "__proto__", "", "\x00", "x" * 500, "prompt ", "Prompt", "é")


def right(path: str) -> dict[str, object]:
    if path == PATHS[0]:
        return {"prompt": "x", "max_tokens": 1}
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


def malformed(seed: int) -> Iterator[tuple[str, bytes]]:
    """Without end: paths and bodies that no server may accept."""
    chance = random.Random(seed)
    while True:
        path = chance.choice(PATHS)
        yield path, _body(chance, path)


def _body(chance: random.Random, path: str) -> bytes:
    kind = chance.randrange(6)
    if kind == 0:
        return chance.choice(RAW)
    body = right(path)
    if kind == 1:
        body[chance.choice(NAMES)] = chance.choice((1, None, "x", []))
    elif kind == 2:
        del body[next(iter(body))]
    else:
        for _ in range(chance.randint(1, 3)):
            body[chance.choice(FIELDS)] = chance.choice(WRONG)
    encoded = json.dumps(body).encode()
    if kind == 3:
        encoded = encoded[: chance.randrange(1, len(encoded))]
    elif kind == 4:
        at = chance.randrange(len(encoded))
        encoded = encoded[:at] + bytes([chance.randrange(0x80, 0x100)]) + encoded[at:]
    return encoded
