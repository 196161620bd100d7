"""The messages between a front end and the replicas of a model, and how a request is told to the
router that chooses one.

A front end is a process with an HTTP server; a replica hosts one engine, supervised as ever. Each
request is one call that lasts as long as the request does, so that whoever counts calls counts
requests. What an engine tells travels apart from that: all that a step tells a front end is one
item, on one of the front end's open calls (`outbox.py`, `inbox.py`), or while there is none the
answer to one that is made for it.
"""

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from quire.cache.sharing import SharingTerms
from quire.engine.messages import Abort, EngineFacts, EngineOutput, EngineQuery
from quire.engine.orders import Answer, Order
from quire.engines.process.end_cause import EndCause
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Delta, Refusal

MAX_ROUTED_TOKENS = 4096
"""So many leading tokens of a prompt are shown to the router: enough to tell prefixes apart."""
NUM_CHARACTERS = 0x110000 - 0x800
FIRST_SURROGATE, NUM_SURROGATES = 0xD800, 0x800


@dataclass(frozen=True, slots=True)
class Call:
    """One call to a replica.

    body: the message, in MessagePack.
    prompt: the beginning of the prompt in the router's eyes, empty where there is none; routers
        read it by this name.
    front_end: the front end that calls, and how often it has lost touch with a replica.
    replica: the replica that must take the call, if it is there still; None for any.
    clock_offset_s: that of the front end's machine (`clocks.py`).
    """

    body: bytes
    prompt: str = ""
    front_end: str = ""
    replica: str | None = None
    clock_offset_s: float = 0.0


class ReplicaIdentity(msgspec.Struct, frozen=True, tag="joined", array_like=True):
    """The first item of a call: the replica that has it, and the offset of its machine's clock.
    The same is the answer to `Greet`."""

    replica: str
    clock_offset_s: float


class EngineLost(msgspec.Struct, frozen=True, array_like=True):
    """The engine of the replica has ended, and another follows."""

    cause: EndCause


class RequestsResumed(msgspec.Struct, frozen=True, array_like=True):
    """Another engine of the replica goes on with so many requests, after so many seconds."""

    num_requests: int
    out_of_service_s: float


class ReplicaUpdate(msgspec.Struct, frozen=True, tag="told", array_like=True):
    """All that a replica has had to tell a front end since the item before, whose number is one
    less.

    outputs: what the engine told. ended: the last deltas of requests that ended while no engine had
    them. refused: requests that were not taken, or could not go on. is_down: no engine
    follows the last one, and all requests are given back.
    lost, resumed: ends of engines in it, and those that followed. num_quarantined: the requests
    that were found to crash engines. num_flights, num_failed_flights: flight records of engines
    that have ended, which were written or could not be.
    """

    number: int
    outputs: tuple[EngineOutput, ...] = ()
    ended: tuple[Delta, ...] = ()
    refused: tuple[Refusal, ...] = ()
    is_down: bool = False
    lost: tuple[EngineLost, ...] = ()
    resumed: tuple[RequestsResumed, ...] = ()
    num_quarantined: int = 0
    num_flights: int = 0
    num_failed_flights: int = 0


class Greet(msgspec.Struct, frozen=True, tag="greet", array_like=True):
    """Front end to replica: say who is there, as a `ReplicaIdentity`, and keep what there is to
    tell."""


class Collect(msgspec.Struct, frozen=True, tag="collect", array_like=True):
    """Front end to replica: tell what no open call carries."""


class CollectReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Collect`: the replica that gives it, and what it tells, if anything."""

    replica: str
    told: ReplicaUpdate | None


Item: TypeAlias = ReplicaIdentity | ReplicaUpdate
Message: TypeAlias = Abort | Collect | Greet | EngineQuery | Order
"""A message to a replica that is no request."""

encode = msgspec.msgpack.Encoder().encode
decode_item = msgspec.msgpack.Decoder[Item](ReplicaIdentity | ReplicaUpdate).decode
decode_message = msgspec.msgpack.Decoder[Message](
    Abort | Collect | Greet | EngineQuery | Order
).decode
decode_joined = msgspec.msgpack.Decoder(ReplicaIdentity).decode
decode_collected = msgspec.msgpack.Decoder(CollectReply).decode
decode_facts = msgspec.msgpack.Decoder(EngineFacts).decode
decode_answer = msgspec.msgpack.Decoder[Answer](Answer).decode


def routing_text(request: NewRequest) -> str:
    """Return the beginning of a prompt as text that begins alike exactly where blocks can be
    shared: one character a token, which depends on the token and on whom it is shared with.
    """
    token_ids = request.prompt_token_ids[:MAX_ROUTED_TOKENS]
    terms = request.sharing
    num_public = min(terms.num_public_tokens, len(token_ids))
    public, own = _offset(SharingTerms(adapter=terms.adapter)), _offset(terms)
    characters = [_character(each + public) for each in token_ids[:num_public]]
    characters += [_character(each + own) for each in token_ids[num_public:]]
    return "".join(characters)


def _offset(terms: SharingTerms) -> int:
    """Return a number that tells terms apart; 0 for those that share with all."""
    if not (terms.salt or terms.adapter or terms.items):
        return 0
    parts = repr((terms.salt, terms.adapter, terms.items)).encode()
    return int.from_bytes(hashlib.sha256(parts).digest()[:8], "little")


def _character(number: int) -> str:
    """Return one of the characters that can be encoded, which surrogates cannot."""
    index = number % NUM_CHARACTERS
    return chr(index if index < FIRST_SURROGATE else index + NUM_SURROGATES)
