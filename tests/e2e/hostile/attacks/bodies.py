"""Attacks by what a body says: lists, maps, nesting, numbers and texts of any size."""

import itertools
import json
from collections.abc import Callable

from tests.e2e.hostile.target import Attack, Target, post_bytes
from tests.e2e.malformed import malformed

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
MILLION = 1_000_000
BAD = ("400", "404", "413", "422")


def items(item: bytes, num: int) -> bytes:
    """Return a JSON list of so many of the item."""
    return b"[" + b",".join(itertools.repeat(item, num)) + b"]"


def field(name: str, value: bytes) -> bytes:
    return b'{"prompt":"x","max_tokens":1,"%b":%b}' % (name.encode(), value)


def once(path: str, make: Callable[[], bytes]) -> Callable[[Target], None]:
    """Return an attack that posts one body."""

    def run(target: Target) -> None:
        target.post(path, make())

    return run


def many_times(path: str, make: Callable[[], bytes], num: int) -> Callable[[Target], None]:
    """Return an attack that posts the same body many times, on eight connections at a time."""

    def run(target: Target) -> None:
        body = make()
        target.together([lambda: target.post(path, body)] * num, num_threads=8)

    return run


def unknown_keys(num: int) -> bytes:
    return b'{"prompt":"x",' + b",".join(b'"%x":0' % index for index in range(num)) + b"}"


def bad_biases(num: int) -> bytes:
    return field("logit_bias", b"{" + b",".join(b'"%d":""' % i for i in range(num)) + b"}")


def same_key(num: int) -> bytes:
    return b'{"prompt":"x",' + b",".join(itertools.repeat(b'"stop":"x"', num)) + b"}"


def nested(opening: bytes, closing: bytes, depth: int) -> bytes:
    return field("stop", opening * depth + b"1" + closing * depth)


def template_arguments() -> bytes:
    arguments = {f"key{index}": {"a": [index] * 5} for index in range(120_000)}
    messages = [{"role": "user", "content": "x"}]
    return json.dumps(
        {"messages": messages, "max_tokens": 1, "chat_template_kwargs": arguments}
    ).encode()


def messages(num: int, content: str) -> bytes:
    said = [{"role": ("user", "assistant")[index % 2], "content": content} for index in range(num)]
    return json.dumps({"messages": said, "max_tokens": 1}).encode()


def text_parts(num: int) -> bytes:
    parts = items(b'{"type":"text","text":"x"}', num)
    return b'{"max_tokens":1,"messages":[{"role":"user","content":%b}]}' % parts


def deep_nestings(target: Target) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")):
        for depth in (100, 2000, MILLION):
            target.post(COMPLETIONS, nested(opening, closing, depth))
    for path in (CHAT, TOKENIZE):
        kwargs = b'{"a":' * 150 + b"1" + b"}" * 150
        said = b'"messages":[{"role":"user","content":"x"}],"chat_template_kwargs"'
        target.post(path, b"{%b:%b}" % (said, kwargs))


def huge_numbers(target: Target) -> None:
    digits = b"9" * 4_000_000
    for name in ("max_tokens", "seed", "temperature", "n", "logit_bias"):
        for number in (digits, b"0." + digits, b"1e" + digits, b"-" + digits):
            target.post(COMPLETIONS, field(name, number))


def huge_texts(target: Target) -> None:
    """Post 7 MB as each of the fields that take no such thing; the mistake is at the end."""
    text = b'"' + b"x" * (7 * MILLION) + b'"'
    for name in ("model", "stop", "temperature", "cache_salt", "no_such_field", "stream", "user"):
        target.post(COMPLETIONS, field(name, text))
    target.post(COMPLETIONS, b'{"prompt":"%b\xff"}' % (b"x" * 7 * MILLION))
    target.post(COMPLETIONS, b'{"%b":1}' % (b"x" * 7 * MILLION))
    target.post(COMPLETIONS, b'{"prompt":"%b"}' % (b"\\ud800" * MILLION))
    target.post(COMPLETIONS, b" " * (7 * MILLION) + b"{")


def big_choices(target: Target) -> None:
    """Ask of one request all that may be asked at once, and more."""
    most = {"stop_token_ids": list(range(256)), "logit_bias": {str(i): -1.5 for i in range(1024)}}
    ask = {"prompt": "x", "max_tokens": 20, "ignore_eos": True} | most
    for num in (10**9, 129, 128):
        target.post(COMPLETIONS, ask | {"n": num})
        target.post(COMPLETIONS, ask | {"n": 1, "best_of": num})
    target.post(COMPLETIONS, ask | {"prompt": ["x"] * 1024, "n": 128})


def malformed_bodies(target: Target) -> None:
    sent = list(itertools.islice(malformed(seed=20), 1000))
    target.together([lambda path=path, body=body: target.post(path, body) for path, body in sent])  # type: ignore[misc]


def unknown_models(target: Target) -> None:
    body = {"prompt": "x", "model": "m" * 100_000}
    target.together([lambda: target.post(COMPLETIONS, body)] * 200)


def bodies_without_key(target: Target) -> None:
    """Post bodies of 8 MB with a key that the server does not know."""
    request = post_bytes(COMPLETIONS, field("stop", items(b"1", 3_500_000)), Authorization="none")
    target.together([lambda: target.raw([request])] * 40, num_threads=8)


ATTACKS = (
    Attack(
        "list of stop strings",
        "`stop` with 3 million numbers, 6 MB",
        BAD,
        once(COMPLETIONS, lambda: field("stop", items(b"1", 3 * MILLION))),
        limit_s=120,
    ),
    Attack(
        "texts for token ids",
        "`/detokenize` of 2 million strings",
        BAD,
        once(DETOKENIZE, lambda: b'{"tokens":%b}' % items(b'""', 2 * MILLION)),
        limit_s=120,
    ),
    Attack(
        "unknown fields", "800,000 of them", BAD, once(COMPLETIONS, lambda: unknown_keys(800_000))
    ),
    Attack(
        "bad values of logit_bias",
        "600,000 of them",
        BAD,
        once(COMPLETIONS, lambda: bad_biases(600_000)),
    ),
    Attack(
        "one field again and again",
        "500,000 times",
        (*BAD, "200"),
        once(COMPLETIONS, lambda: same_key(500_000)),
    ),
    Attack("deep nesting", "lists and objects to a million levels", (*BAD, "200"), deep_nestings),
    Attack("huge numbers", "of 4 million digits, in five fields", (*BAD, "200"), huge_numbers),
    Attack("huge texts", "7 MB where a short text belongs", (*BAD, "200"), huge_texts),
    Attack(
        "big n, best_of, biases",
        "the most that is allowed, and more",
        (*BAD, "200", "503", "429"),
        big_choices,
    ),
    Attack("malformed bodies", "1,000 of the fuzzer", BAD, malformed_bodies),
    Attack("unknown models", "200 requests for a name of 100 kB", BAD, unknown_models),
    Attack("big bodies without a key", "40 of 7 MB", ("401",), bodies_without_key),
    Attack(
        "prompts by the million",
        "a list of 2 million short prompts",
        BAD,
        once(COMPLETIONS, lambda: b'{"prompt":%b}' % items(b"[1]", 2 * MILLION)),
    ),
    Attack(
        "token ids by the million",
        "one prompt of 3 million ids",
        BAD,
        once(COMPLETIONS, lambda: b'{"prompt":%b}' % items(b"1", 3 * MILLION)),
    ),
    Attack(
        "many text parts",
        "a message of 300,000 parts",
        BAD,
        once(CHAT, lambda: text_parts(300_000)),
    ),
    Attack(
        "many messages",
        "8 chats of 4,096 messages",
        BAD,
        many_times(CHAT, lambda: messages(4096, "x"), 8),
    ),
    Attack(
        "big messages",
        "100 messages of 70 kB",
        BAD,
        once(CHAT, lambda: messages(100, "x y " * 17_000)),
    ),
    Attack(
        "template arguments",
        "120,000 `chat_template_kwargs`",
        (*BAD, "200"),
        once(CHAT, template_arguments),
    ),
)
