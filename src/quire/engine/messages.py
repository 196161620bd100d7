"""The process line: frozen messages in MessagePack, each framed by its length. Nothing here is
ever unpickled.
"""

from typing import TypeAlias

import msgspec

from quire.cache.kv_events import KVEvent
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.step import Delta, Refusal, Stats


class Submit(msgspec.Struct, frozen=True, tag="submit", array_like=True):
    """Server to engine: take this request."""

    request: NewRequest


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """Server to engine: forget this request (client gone, stop string seen, deadline)."""

    request_id: str


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache", array_like=True):
    """Server to engine: find nothing again that is cached now."""


class Loading(msgspec.Struct, frozen=True, tag="loading", array_like=True):
    """Engine to server, while starting: the phase under way and how far it is."""

    phase: str
    done: int
    total: int


class ReceiptLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of the memory receipt."""

    kind: str
    num_bytes: int


class LayerGroupFacts(msgspec.Struct, frozen=True):
    """Layers that share a block table: `kind` as the cache names it, or `latent`; `reach` is the
    window or chunk in tokens."""

    kind: str
    reach: int | None
    num_layers: int


class MemoryFacts(msgspec.Struct, frozen=True):
    """What KV memory holds, and why it and a step are as large as they are.

    `kv_tokens` is the context that requests of the model length have together, `max_concurrency`
    how many of them run at once at their worst, `max_model_len_fits` the longest one request could
    be, up to what the weights were made for. `kv_token_bytes`: a token that no layer has forgotten.
    """

    kv_dtype: str
    kv_tokens: int
    kv_token_bytes: int
    layer_groups: tuple[LayerGroupFacts, ...]
    padding_share: float
    max_model_len_fits: int
    max_concurrency: float
    why_num_blocks: str
    why_max_num_batched_tokens: str


class EngineFacts(msgspec.Struct, frozen=True):
    """What the server must know of a loaded engine."""

    model_type: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    num_host_blocks: int
    eos_token_ids: tuple[int, ...]
    receipt: tuple[ReceiptLine, ...]
    memory: MemoryFacts
    startup_s: dict[str, float]
    attention: str = "none"
    """The backend, and the instruction set of its kernels."""
    quantization: str = "none"
    """Of the weights."""
    async_scheduling: bool = False
    """Is a step scheduled while the device computes the one before?"""


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """Engine to server: loaded and waiting for work."""

    facts: EngineFacts


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """Engine to server: its last word before it ends; `message` is for people."""

    message: str


class EngineOutput(msgspec.Struct, frozen=True, tag="output", array_like=True):
    """Engine to server: everything one turn of the loop has to say, in one message.

    `num_tokens` were computed in `step_s` seconds; both are 0 for a turn without a step. `events`
    are new entries of the timelines of the requests beside them."""

    step: int
    num_tokens: int
    step_s: float
    accepted: tuple[str, ...]
    refused: tuple[Refusal, ...]
    deltas: tuple[Delta, ...]
    stats: Stats
    events: tuple[tuple[str, Event], ...] = ()
    kv_events: tuple[KVEvent, ...] = ()


ToEngine: TypeAlias = Submit | Abort | ResetPrefixCache
FromEngine: TypeAlias = Loading | Ready | Failed | EngineOutput
