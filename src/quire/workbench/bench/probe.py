"""Finds out by requests what a server is and what it takes: model, path, fields, prompts.

Completions are preferred to chat, because no template is added to their prompts, and `ignore_eos`
is asked for wherever it is not refused, because replies are then as long as wanted.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quire.workbench.bench.prompts import WORDS, Prompt, WordRate, rate_from, words
from quire.workbench.bench.replies import Failure, Reply, parse_reply
from quire.workbench.bench.server_client import (
    ASK_TIMEOUT_S,
    BenchError,
    ServerClient,
    read_json,
    reason_of,
)

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
NUM_CALIBRATION_WORDS = (16, 64)
NOT_FOUND = 404
Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The path and the fields by which this server is asked for text."""

    path: str
    asks_ignore_eos: bool

    def body(self, model: str, prompt: Prompt, num_output_tokens: int) -> bytes:
        """Return the JSON of a request."""
        fields: dict[str, object] = {
            "model": model,
            "max_tokens": num_output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.path == CHAT:
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        if self.asks_ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields)


DIALECTS = tuple(Dialect(path, ignore) for path in (COMPLETIONS, CHAT) for ignore in (True, False))


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. `pool` holds token ids that it takes as a prompt, or nothing."""

    label: str
    client: ServerClient
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


def find_server(label: str, client: ServerClient, wanted_model: str | None) -> Server:
    """Find out about a server. Raises BenchError where it gives no text."""
    listed = _listed_models(client, is_needed=wanted_model is None)
    model = wanted_model or listed[0].id
    try:
        dialect = _find_dialect(client, model)
    except BenchError as error:
        names = [each.id for each in listed]
        hint = "" if model in names else f"; it lists {', '.join(names) or 'no model'}"
        raise BenchError(f"{error}{hint}") from None
    rate = _find_rate(client, model, dialect)
    return Server(
        label=label,
        client=client,
        model=model,
        version=_find_version(client),
        max_model_len=next((each.max_model_len for each in listed if each.id == model), None),
        dialect=dialect,
        rate=rate,
        pool=_find_pool(client, model, dialect),
    )


def _listed_models(client: ServerClient, *, is_needed: bool) -> list[_Model]:
    response = client.ask("/v1/models")
    decoded = read_json(response.body, _Models) if response.status == 200 else None
    listed = decoded.data if decoded is not None else []
    if is_needed and not listed:
        raise BenchError(
            f"{client.address.url}: not an OpenAI-style server, or without a model: "
            f"GET /v1/models answered {reason_of(response)}"
        )
    return listed


def _find_dialect(client: ServerClient, model: str) -> Dialect:
    refusals: list[tuple[int, str]] = []
    for dialect in DIALECTS:
        exchanged = client.exchange(dialect.path, dialect.body(model, WORDS[0], 2), ASK_TIMEOUT_S)
        response = client.check(exchanged)
        if response.status == 200:
            _check_stream(client, dialect, parse_reply(exchanged))
            return dialect
        refusals.append((response.status, f"{dialect.path} answered {reason_of(response)}"))
        if response.status >= 500:
            break
    # A path that is not there says less than a path that refuses.
    reasons = [text for status, text in refusals if status != NOT_FOUND] or [refusals[0][1]]
    raise BenchError(f"{client.address.url}: {reasons[0]}")


def _check_stream(client: ServerClient, dialect: Dialect, reply: Reply | Failure) -> None:
    if isinstance(reply, Failure):
        where = f"{client.address.url}{dialect.path}"
        raise BenchError(f"{where}: no stream of OpenAI's events ({reply.reason})")


def _prompt_tokens(
    client: ServerClient, model: str, dialect: Dialect, prompt: Prompt
) -> int | None:
    """Return the tokens of a prompt by the server's usage; None without it, or where the prompt is
    refused."""
    body = dialect.body(model, prompt, 1)
    exchanged = client.exchange(dialect.path, body, ASK_TIMEOUT_S)
    if client.check(exchanged).status != 200:
        return None
    reply = parse_reply(exchanged)
    return reply.num_prompt_tokens if isinstance(reply, Reply) else None


def _find_rate(client: ServerClient, model: str, dialect: Dialect) -> WordRate:
    fewer, more = (
        (count, _prompt_tokens(client, model, dialect, words("rate", count)))
        for count in NUM_CALIBRATION_WORDS
    )
    if fewer[1] is None or more[1] is None:
        return WordRate(1.0, 0.0)
    return rate_from((fewer[0], fewer[1]), (more[0], more[1]))


def _ask_optional(
    client: ServerClient, path: str, body: bytes | None, kind: type[Decoded]
) -> Decoded | None:
    """Ask for what OpenAI's API does not have; None for any refusal, a gateway's 403 among them."""
    try:
        return read_json(client.ask(path, body).body, kind)
    except BenchError:
        return None


def _find_version(client: ServerClient) -> str | None:
    decoded = _ask_optional(client, "/version", None, _Version)
    return decoded.version if decoded is not None else None


def _find_pool(client: ServerClient, model: str, dialect: Dialect) -> tuple[int, ...]:
    """Return the token ids of `WORDS`, by the `/tokenize` that vLLM and Quire have; none where a
    prompt may not be token ids."""
    if dialect.path != COMPLETIONS:
        return ()
    fields = {"model": model, "prompt": " ".join(WORDS), "add_special_tokens": False}
    decoded = _ask_optional(client, "/tokenize", msgspec.json.encode(fields), _Tokens)
    if decoded is None or not decoded.tokens:
        return ()
    pool = sorted(set(decoded.tokens))
    tried = pool[: NUM_CALIBRATION_WORDS[0]]
    taken = _prompt_tokens(client, model, dialect, tried)
    return tuple(pool) if taken == len(tried) else ()
