"""The messages between server and engine process: frozen structs in MessagePack.

Each is framed by its length (`channel.py`). Both ends are of one version, and nothing is pickled.
"""

from typing import TypeAlias

import msgspec

from quire.cache.kv_events import KVEvent
from quire.engine.failure_kind import FailureKind
from quire.engine.orders import Answer, Order, Question
from quire.scheduler.live.live_frame import LiveFrame
from quire.scheduler.request import Event, NewRequest, PoolingKind, ResumedOutput
from quire.scheduler.step import Delta, Refusal, Stats
from quire.scheduler.usage.ledger import NOTHING_USED, UsageUpdate
from quire.storage.disk.counts import DiskStats
from quire.storage.network.counts import TransferStats


class Submit(msgspec.Struct, frozen=True, tag="submit", array_like=True):
    """Server to engine: schedule this request; `resumed` is the output that an ended engine had
    delivered."""

    request: NewRequest
    resumed: ResumedOutput | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """Server to engine: end this request (client gone, stop string seen, deadline)."""

    request_id: str


class EngineQuery(msgspec.Struct, frozen=True, tag="ask", array_like=True):
    """Server to engine: answer a question, under this id."""

    id: str
    question: Question


class LoadingProgress(msgspec.Struct, frozen=True, tag="loading", array_like=True):
    """Engine to server, while starting: the current phase, `done` of `total` units of it."""

    phase: str
    done: int
    total: int


class ReceiptLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of the memory receipt."""

    kind: str
    num_bytes: int


class LayerGroupFacts(msgspec.Struct, frozen=True):
    """The layers that share a block table and see alike: `kind` is the cache's name of their
    attention, or `latent`; `reach` is the window or chunk in tokens, or None where a layer sees all
    tokens. If `is_kept_whole`, the layers share a block table with all others, and keep every token
    although they see no more than their reach. `num_sharing` further layers attend over the K and V
    of these, and keep none."""

    kind: str
    reach: int | None
    num_layers: int
    is_kept_whole: bool = False
    num_sharing: int = 0


class MemoryFacts(msgspec.Struct, frozen=True):
    """Facts of KV memory: what it holds, and why it and a step are as large as they are.

    kv_tokens: the tokens of context that requests of `max_model_len` have together.
    kv_token_bytes: the bytes of one token in all layers.
    max_model_len_fits: the longest request that memory allows, up to the model's own maximum.
    max_concurrency: how many requests of `max_model_len` run at once in the worst case.
    padding_share: the share of KV memory, 0 to 1, that holds no layer.
    passed_token_bytes: the bytes that are kept of a token which all windows have passed.
    unseen_token_bytes: the part of them in layers that never see the token again; 0 where layers
        with windows give it back.
    why_kept_whole: why these do not, in words; empty where they do.
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
    passed_token_bytes: int = 0
    unseen_token_bytes: int = 0
    why_kept_whole: str = ""


class EmbeddingFacts(msgspec.Struct, frozen=True):
    """Facts of how the embeddings of the model are made.

    is_normalized: an embedding is divided by its length, unless a request says otherwise.
    size: the elements of one. max_len: the most tokens of a text.
    why_not: why the model gives none, in words; empty where it does.
    """

    pooling: PoolingKind
    is_normalized: bool
    size: int
    max_len: int
    why_not: str = ""


class ScoreFacts(msgspec.Struct, frozen=True):
    """Facts of how a cross-encoder scores pairs: through a sigmoid, or as its head says."""

    is_sigmoid: bool


class RankFacts(msgspec.Struct, frozen=True):
    """Facts of one of the ranks that a model is divided among, in bytes: its part of the weights,
    of all blocks of KV memory, and of all states of recurrent layers."""

    device: str
    weight_bytes: int
    kv_bytes: int
    state_bytes: int


class EngineFacts(msgspec.Struct, frozen=True):
    """Facts of a loaded engine that the server needs to know.

    Lengths and budgets are in tokens; `startup_s` has the seconds of each phase of the start.
    """

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
    num_states: int = 0
    """The states of recurrent layers, the null state among them; 0 without such layers."""
    num_host_states: int = 0
    """The states of recurrent layers in host memory."""
    attention: str = "none"
    """The attention backend and the instruction set of its kernels."""
    experts: str = "none"
    """The kernels that compute the experts of a mixture of them, or none."""
    decode: str = "eager"
    """The launch of steps of one token per request: eager with the reason, or cuda_graphs."""
    prefill: str = "eager"
    """The launch of other steps: eager with the reason, or piecewise cuda_graphs."""
    quantization: str = "none"
    """The format of the weights: none or int8."""
    left_out: tuple[str, ...] = ()
    """The optimizations that a check at load disabled, each in a sentence with the reason and the
    cost."""
    async_scheduling: bool = False
    """Whether steps overlap: a step is scheduled while the device computes the previous one."""
    is_causal: bool = True
    """Whether attention is causal; it is bidirectional in an encoder."""
    has_head: bool = True
    """Whether the model has a head that turns its states into tokens."""
    embeddings: EmbeddingFacts | None = None
    """Facts of the embeddings; None if the model makes none."""
    scores: ScoreFacts | None = None
    """Facts of the scores of text pairs; None if the model scores none."""
    ranks: tuple[RankFacts, ...] = ()
    """The tensor parallel ranks; empty for a single process. With ranks, the receipt describes each
    of them."""

    @property
    def num_ranks(self) -> int:
        """The number of processes that the model's weights are divided among."""
        return max(len(self.ranks), 1)

    @property
    def generates(self) -> bool:
        """Whether the model continues texts; one that does not gives embeddings alone."""
        return self.is_causal and self.has_head


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """Engine to server: the model is loaded and requests may come."""

    facts: EngineFacts


class EngineFailure(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """Engine to server: the last message before the process ends; `message` is for people, `kind`
    for the server's reaction."""

    message: str
    kind: FailureKind = FailureKind.OTHER


class EngineOutput(msgspec.Struct, frozen=True, tag="output", array_like=True):
    """Engine to server: the results of one iteration of the engine loop (vLLM: EngineCoreOutputs).

    step: the number of the completed step, 0 if none was completed.
    num_tokens, step_s: how many tokens it computed, in how many seconds; 0 without a step.
    accepted, refused: the requests that the scheduler took or refused.
    deltas: new tokens and finishes of requests.
    events: new entries of request timelines, each with its request id.
    answers: those to questions, each with its id.
    disk: the accounts of the prefix cache on disk, None where there is none.
    transfer: the accounts of blocks that engines send each other, None where they do not.
    live: what has changed of blocks and requests since it was last told, if it is told now.
    usage: what was used since the last output.
    """

    step: int
    num_tokens: int
    step_s: float
    accepted: tuple[str, ...]
    refused: tuple[Refusal, ...]
    deltas: tuple[Delta, ...]
    stats: Stats
    events: tuple[tuple[str, Event], ...] = ()
    kv_events: tuple[KVEvent, ...] = ()
    answers: tuple[tuple[str, Answer], ...] = ()
    disk: DiskStats | None = None
    live: LiveFrame | None = None
    usage: UsageUpdate = NOTHING_USED
    transfer: TransferStats | None = None


ToEngine: TypeAlias = Submit | Abort | EngineQuery | Order
FromEngine: TypeAlias = LoadingProgress | Ready | EngineFailure | EngineOutput

decode_to_engine = msgspec.msgpack.Decoder[ToEngine](Submit | Abort | EngineQuery | Order).decode
