"""What a server is and what it takes, found out by asking: model, path, fields, prompts.

Completions are preferred to chat, because no template is added to their prompts, and `ignore_eos`
is asked for wherever it is not refused, because replies are then as long as wanted.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quire.bench.door import ASK_TIMEOUT_S, BenchError, Door, read_json, reason_of
from quire.bench.prompts import WORDS, Prompt, WordRate, rate_from, words
from quire.bench.replies import Failure, Reply, parse_reply

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
NUM_CALIBRATION_WORDS = (16, 64)
NOT_FOUND = 404
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How this server is asked for text."""

    path: str
    asks_ignore_eos: bool

    def body(self, model: str, prompt: Prompt, num_output_tokens: int) -> bytes:
        asked: dict[str, object] = {
            "model": model,
            "max_tokens": num_output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.path == CHAT:
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        if self.asks_ignore_eos:
            asked["ignore_eos"] = True
        return msgspec.json.encode(asked)


DIALECTS = tuple(Dialect(path, ignore) for path in (COMPLETIONS, CHAT) for ignore in (True, False))


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. `pool` holds token ids that it takes as a prompt, or nothing."""

    label: str
    door: Door
    model: str
    version: str | None
    max_model_len: int | None
    dialect: Dialect
    rate: WordRate
    pool: tuple[int, ...]


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _Tokens(msgspec.Struct):
    tokens: list[int]


def find_server(label: str, door: Door, wanted_model: str | None) -> Server:
    """Asks; raises BenchError where no text can be had."""
    listed = _listed_models(door, is_needed=wanted_model is None)
    model = wanted_model or listed[0].id
    try:
        dialect = _find_dialect(door, model)
    except BenchError as error:
        names = [each.id for each in listed]
        hint = "" if model in names else f"; it lists {', '.join(names) or 'no model'}"
        raise BenchError(f"{error}{hint}") from None
    rate = _find_rate(door, model, dialect)
    return Server(
        label=label,
        door=door,
        model=model,
        version=_find_version(door),
        max_model_len=next((each.max_model_len for each in listed if each.id == model), None),
        dialect=dialect,
        rate=rate,
        pool=_find_pool(door, model, dialect),
    )


def _listed_models(door: Door, *, is_needed: bool) -> list[_Model]:
    answer = door.ask("/v1/models")
    told = read_json(answer.body, _Models) if answer.status == 200 else None
    listed = told.data if told is not None else []
    if is_needed and not listed:
        said = reason_of(answer)
        raise BenchError(
            f"{door.address.url}: not an OpenAI-style server, or without a model: "
            f"GET /v1/models answered {said}"
        )
    return listed


def _find_dialect(door: Door, model: str) -> Dialect:
    refusals: list[tuple[int, str]] = []
    for dialect in DIALECTS:
        exchanged = door.exchange(dialect.path, dialect.body(model, WORDS[0], 2), ASK_TIMEOUT_S)
        answer = door.check(exchanged)
        if answer.status == 200:
            _check_stream(door, dialect, parse_reply(exchanged))
            return dialect
        refusals.append((answer.status, f"{dialect.path} answered {reason_of(answer)}"))
        if answer.status >= 500:
            break
    # A path that is not there says less than a path that refuses.
    told = [said for status, said in refusals if status != NOT_FOUND] or [refusals[0][1]]
    raise BenchError(f"{door.address.url}: {told[0]}")


def _check_stream(door: Door, dialect: Dialect, reply: Reply | Failure) -> None:
    if isinstance(reply, Failure):
        where = f"{door.address.url}{dialect.path}"
        raise BenchError(f"{where}: no stream of OpenAI's events ({reply.reason})")


def _prompt_tokens(door: Door, model: str, dialect: Dialect, prompt: Prompt) -> int | None:
    """As usage tells; None where it does not, or where the prompt is not taken."""
    body = dialect.body(model, prompt, 1)
    exchanged = door.exchange(dialect.path, body, ASK_TIMEOUT_S)
    if door.check(exchanged).status != 200:
        return None
    reply = parse_reply(exchanged)
    return reply.num_prompt_tokens if isinstance(reply, Reply) else None


def _find_rate(door: Door, model: str, dialect: Dialect) -> WordRate:
    fewer, more = (
        (count, _prompt_tokens(door, model, dialect, words("rate", count)))
        for count in NUM_CALIBRATION_WORDS
    )
    if fewer[1] is None or more[1] is None:
        return WordRate(1.0, 0.0)
    return rate_from((fewer[0], fewer[1]), (more[0], more[1]))


def _ask_aside(door: Door, path: str, body: bytes | None, kind: type[Told]) -> Told | None:
    """What OpenAI's API does not have: any refusal will do, a gateway's 403 among them."""
    try:
        return read_json(door.ask(path, body).body, kind)
    except BenchError:
        return None


def _find_version(door: Door) -> str | None:
    told = _ask_aside(door, "/version", None, _Version)
    return told.version if told is not None else None


def _find_pool(door: Door, model: str, dialect: Dialect) -> tuple[int, ...]:
    """The ids of our words, by the `/tokenize` that vLLM and Quire have, if a prompt may be ids."""
    if dialect.path != COMPLETIONS:
        return ()
    asked = {"model": model, "prompt": " ".join(WORDS), "add_special_tokens": False}
    told = _ask_aside(door, "/tokenize", msgspec.json.encode(asked), _Tokens)
    if told is None or not told.tokens:
        return ()
    pool = sorted(set(told.tokens))
    tried = pool[: NUM_CALIBRATION_WORDS[0]]
    taken = _prompt_tokens(door, model, dialect, tried)
    return tuple(pool) if taken == len(tried) else ()
