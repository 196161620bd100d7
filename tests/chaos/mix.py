"""The requests that are put to a server: a mix of every way in which an output is made, drawn by a
seed."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Body = Mapping[str, object]

SPEAKERS = ("ROMEO", "JULIET", "FIRST CITIZEN", "KING RICHARD", "GLOUCESTER", "MENENIUS")
SHARED = (
    "FIRST CITIZEN:\nBefore we proceed any further, hear me speak.\n\nALL:\nSpeak, speak.\n\n"
    "FIRST CITIZEN:\nYou are all resolved rather to die than to famish?\n\nALL:\nResolved.\n\n"
)
"""The beginning of some prompts: several blocks, so that they find each other's in the cache."""
PERSON = {
    "type": "object",
    "required": ["name", "age", "wares"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "wares": {
            "type": "array",
            "minItems": 2,
            "maxItems": 4,
            "items": {"type": "string", "maxLength": 16},
        },
    },
}
FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "required": ["thing", "where", "number"],
            "properties": {
                "thing": {"enum": ["sword", "crown"]},
                "where": {"type": "string", "maxLength": 40},
                "number": {"type": "integer", "minimum": 1, "maximum": 9},
            },
        },
    },
}
SAMPLED: Body = {"temperature": 0.9, "top_k": 20, "top_p": 1, "min_p": 0}
GREEDY: Body = {"temperature": 0}
NEVER_SAMPLED = tuple(range(185, 190))
"""Tokens of the bundled model that only a prompt of token ids can have: bytes 0xF8 to 0xFC, which
are in no text. The code of a checkpoint looks for them."""
WAYS: Mapping[str, tuple[str, Body]] = {
    "greedy": (COMPLETIONS, {**GREEDY, "ignore_eos": True}),
    "seeded": (COMPLETIONS, {**SAMPLED, "ignore_eos": True}),
    "choices": (COMPLETIONS, {**SAMPLED, "n": 2, "ignore_eos": True}),
    "logprobs": (COMPLETIONS, {**SAMPLED, "logprobs": 2, "ignore_eos": True}),
    "echo": (COMPLETIONS, {**SAMPLED, "echo": True, "logprobs": 1, "ignore_eos": True}),
    "penalties": (
        COMPLETIONS,
        {**GREEDY, "presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    ),
    "banned": (COMPLETIONS, {**GREEDY, "bad_words": ["the", "my lord"], "min_tokens": 40}),
    "stops": (COMPLETIONS, {**SAMPLED, "stop": [".\n", "? "], "include_stop_str_in_output": True}),
    "schema": (
        CHAT,
        {
            **GREEDY,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON},
            },
        },
    ),
    "tools": (CHAT, {**GREEDY, "tools": [FIND], "tool_choice": "required"}),
    "chat": (CHAT, {**SAMPLED, "logprobs": True, "top_logprobs": 2}),
    "chat choices": (CHAT, {**SAMPLED, "n": 3}),
}
"""By its name: the path, and the fields beside prompt, length and seed."""
EDITED = ("penalties", "banned", "schema", "tools")
"""The ways in which logits are edited: greedy, since ties are then rarer than one could wait for.
Of the others `ties.py` can tell whether there was one."""
COMPLETION_WAYS = tuple(way for way, (path, _) in WAYS.items() if path == COMPLETIONS)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: `way` names what it tries, `body` is what is posted to `path`."""

    way: str
    path: str
    body: Body

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def num_choices(self) -> int:
        """The engine's requests that it becomes, one for each choice."""
        number = self.body.get("n", 1)
        assert isinstance(number, int)
        return number

    def __str__(self) -> str:
        return f"{self.way}{', streamed' if self.is_stream else ''}, seed {self.body['seed']}"

    def but(self, **fields: object) -> "Ask":
        """Return the same with other fields."""
        return replace(self, body={**self.body, **fields})


def asks(
    number: int,
    draw: random.Random,
    *,
    max_tokens: int = 160,
    ways: Sequence[str] = tuple(WAYS),
) -> list[Ask]:
    """Return as many streams as unstreamed requests, each way in its turn; every other prompt
    begins as others do."""
    return [
        ask(ways[index // 2 % len(ways)], draw, is_stream=index % 2 == 0, max_tokens=max_tokens)
        for index in range(number)
    ]


def ask(way: str, draw: random.Random, *, is_stream: bool, max_tokens: int = 160) -> Ask:
    """Return a request with a prompt, length and seed that are drawn."""
    path, fields = WAYS[way]
    speaker, scene = draw.choice(SPEAKERS), draw.randrange(10_000)
    text = f"{SHARED if draw.random() < 0.5 else ''}Scene {scene}.\n\n{speaker}:\n"
    prompt: Body = (
        {"prompt": text}
        if path == COMPLETIONS
        else {"messages": [{"role": "user", "content": text}]}
    )
    stream: Body = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    length = draw.randint(max_tokens // 2, max_tokens)
    said = {"max_tokens": length, "seed": draw.randrange(1 << 31), "return_token_ids": True}
    return Ask(way, path, {**prompt, **fields, **said, **stream})


def with_tokens(number: int, tokens: Sequence[int], draw: random.Random, length: int) -> list[Ask]:
    """Return completions whose prompts are token ids that end with `tokens`: for checkpoints whose
    code looks for these."""
    return [
        Ask("tokens", COMPLETIONS, _tokens_body(tokens, draw, length) | {"stream": index % 2 == 0})
        for index in range(number)
    ]


def _tokens_body(tokens: Sequence[int], draw: random.Random, length: int) -> dict[str, object]:
    ordinary = [draw.randrange(300, 1800) for _ in range(draw.randint(8, 40))]
    return {
        "prompt": [*ordinary, *tokens],
        **SAMPLED,
        "max_tokens": length,
        "seed": draw.randrange(1 << 31),
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 1,
    }
