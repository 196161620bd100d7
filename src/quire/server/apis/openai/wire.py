"""The bodies and chunks that are sent, in OpenAI's form. UNSET fields are left out."""

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.generation.usage import ChoiceAccount, PromptProgress, QuireAccount, Usage

TopLogprobs: TypeAlias = dict[str, float]


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
    quire: ChoiceAccount | UnsetType = UNSET


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
    quire: ChoiceAccount | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET
    quire: ChoiceAccount | UnsetType = UNSET


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


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str
