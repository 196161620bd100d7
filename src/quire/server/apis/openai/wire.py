"""The bodies and chunks that are sent, in OpenAI's form. UNSET fields are left out."""

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from quire.engine.messages import EngineFacts
from quire.server.models.sampling_defaults import SamplingDefaults

TopLogprobs: TypeAlias = dict[str, float]


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """`prompt_tokens_details` is null where the engine's account of the prompt is not known;
    `completion_tokens_details` is left out where outputs are not parsed for reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Timing(msgspec.Struct, frozen=True):
    """The parts of one choice's time, as the engine measured them."""

    index: int
    queue_s: float
    prefill_s: float
    decode_s: float
    cached_tokens: int
    preemptions: int


class QuireAccount(msgspec.Struct, frozen=True):
    """Quire's own part of an answer; clients of other servers do not look for it."""

    timings: tuple[Timing, ...]


class PromptLogprob(msgspec.Struct, frozen=True):
    """The log probability of a token in the place of one of the prompt; `rank` 1 is the
    likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs: TypeAlias = tuple[dict[str, PromptLogprob] | None, ...]
"""For each token of a prompt those of the token and the likeliest ones, by their ids, which are
written as decimal numbers; null for the first token."""


class CompletionLogprobs(msgspec.Struct, frozen=True):
    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[TopLogprobs | None, ...]
    text_offset: tuple[int, ...]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class PromptProgress(msgspec.Struct, frozen=True):
    """The tokens of a prompt that are computed, `processed` of `total`, `time_ms` after the request
    arrived; `cache` of them were found in the cache. Fields as llama-server has them."""

    total: int
    cache: int
    processed: int
    time_ms: float


class CompletionBody(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    object: str = "text_completion"
    usage: Usage | None | UnsetType = UNSET
    quire: QuireAccount | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


class TopToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenInfo(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopToken, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: tuple[TokenInfo, ...]
    refusal: None = None


class FunctionOut(msgspec.Struct, frozen=True):
    """`arguments` is the JSON of an object, or in a stream a part of it."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallOut(msgspec.Struct, frozen=True):
    """A tool call; in a stream `index` says which, and `id`, `type` and the name come first. Where
    the output ended within the arguments, `status` is "incomplete": they are no JSON then."""

    function: FunctionOut
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    status: str | UnsetType = UNSET


class ChatMessageOut(msgspec.Struct, frozen=True):
    """`content` is null where there are only tool calls; `reasoning` is `reasoning_content` once
    more, under its newer name. A request with `functions` has `function_call` for `tool_calls`."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallOut, ...] | UnsetType = UNSET
    function_call: FunctionOut | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallOut, ...] | UnsetType = UNSET
    function_call: FunctionOut | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessageOut
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatBody(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage
    quire: QuireAccount
    object: str = "chat.completion"
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    object: str = "chat.completion.chunk"
    usage: Usage | None | UnsetType = UNSET
    quire: QuireAccount | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


class Health(msgspec.Struct, frozen=True):
    """`reason` says why a server is down. Where there are several models, `models` names those that
    are at fault, with what is wrong with each."""

    status: str
    reason: str | None | UnsetType = UNSET
    models: dict[str, str] | UnsetType = UNSET


class StartProgress(msgspec.Struct, frozen=True):
    """`done` of `total` parts of the phase, `elapsed_s` seconds after the start."""

    phase: str
    done: int
    total: int
    elapsed_s: float


class Startup(msgspec.Struct, frozen=True):
    """`progress` is left out once the server has started."""

    status: str
    progress: StartProgress | UnsetType = UNSET


class Version(msgspec.Struct, frozen=True):
    version: str


class ModelInfo(msgspec.Struct, frozen=True):
    """`facts` and `memory` are null while the model is not loaded. `startup_s` then has the seconds
    of each phase of the engine's start and, as `total`, those of the whole load."""

    name: str
    status: str
    facts: EngineFacts | None
    startup_s: dict[str, float]
    memory: dict[str, object] | None
    sampling_defaults: SamplingDefaults
    config: dict[str, object]


class ServerInfo(msgspec.Struct, frozen=True):
    """Everything about the server and its models; what stands beside `models` is about the first of
    them, and `config` about the server and the first."""

    version: str
    phase: str
    facts: EngineFacts | None
    startup_s: dict[str, float]
    memory: dict[str, object] | None
    sampling_defaults: SamplingDefaults
    config: dict[str, object]
    models: tuple[ModelInfo, ...]


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | UnsetType = UNSET


class RenderedPrompt(msgspec.Struct, frozen=True):
    """`text` is that of the tokens, special ones among them; its output may have `max_tokens`."""

    text: str
    token_ids: tuple[int, ...]
    count: int
    max_tokens: int


class RenderedSampling(msgspec.Struct, frozen=True):
    """The sampling of each output, and what ends it: as the client says, else the model's own file,
    else OpenAI's defaults. `top_k` 0 is off; `seed` null is random."""

    n: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]


class Rendered(msgspec.Struct, frozen=True):
    """The prompts that a request would run with, its limits and its sampling."""

    model: str
    max_model_len: int
    prompts: tuple[RenderedPrompt, ...]
    sampling: RenderedSampling
    object: str = "prompts"


class Cancelled(msgspec.Struct, frozen=True):
    """`state` is `cancelling` where the request runs, until the engine has taken its next step, and
    `ended` where it has ended before."""

    id: str
    state: str
    object: str = "request.cancelled"


class ModelLoads(msgspec.Struct, frozen=True):
    """The load of one model after its last step. `blocks` are those of KV memory by their state;
    `predicted_wait_s` are the seconds until what waits now is computed, 0 if that is not known;
    `max_num_queued_reqs` may wait. `num_waiting_for_load` requests wait until it is loaded."""

    model: str
    status: str
    num_running: int
    num_waiting: int
    num_waiting_for_load: int
    max_num_seqs: int
    max_num_queued_reqs: int
    kv_cache_usage: float
    blocks: dict[str, int]
    predicted_wait_s: float


class Loads(msgspec.Struct, frozen=True):
    """The loads of all models, and together: sums, and of usage and wait the most."""

    num_running: int
    num_waiting: int
    max_num_seqs: int
    max_num_queued_reqs: int
    kv_cache_usage: float
    blocks: dict[str, int]
    predicted_wait_s: float
    models: tuple[ModelLoads, ...]
    object: str = "loads"


class CacheMiss(msgspec.Struct, frozen=True):
    """`reason` is `too_short` (for one block), `differs`, `evicted`, `salt` or `new`; `token` is
    the first of the prompt that it concerns, for `too_short` the prompt's length."""

    reason: str
    token: int


class CacheProbe(msgspec.Struct, frozen=True):
    """The leading tokens of a prompt that the prefix cache holds: `cached_tokens` in all,
    `device_tokens` without a copy from the host. `miss` is null where no more could be."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    device_tokens: int
    miss: CacheMiss | None
    object: str = "cache.probe"


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


class ResetSent(msgspec.Struct, frozen=True):
    """The engines have been told to empty the prefix cache."""

    status: str = "sent"
