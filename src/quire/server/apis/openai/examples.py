"""Requests that any server answers, and answers as they come."""

from collections.abc import Mapping

from quire.server.apis.descriptions import CREATED_S, event_text
from quire.server.apis.openai.wire import (
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatMessageOut,
    CompletionBody,
    CompletionChoice,
    Rendered,
    RenderedPrompt,
    RenderedSampling,
)
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.generation.usage import CachedTokens, QuireAccount, Timing, Usage

_CHAT_ID, _COMPLETION_ID = "chatcmpl-0123456789abcdef", "cmpl-0123456789abcdef"

_MESSAGES = [{"role": "user", "content": "Say hello."}]

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

COMPLETION_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "text": {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0},
    "stream": {
        "prompt": "Once upon a time",
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "tokens": {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 4, "n": 2, "seed": 1, "logprobs": 2},
    "choice": {
        "prompt": "To be or not to be?",
        "max_tokens": 16,
        "structured_outputs": {"choice": ["to be", "not to be"]},
    },
    "regex": {"prompt": "It is", "max_tokens": 16, "guided_regex": "[0-9]{1,2}:[0-5][0-9]"},
    "grammar": {
        "prompt": "1+1=",
        "max_tokens": 16,
        "structured_outputs": {"grammar": 'start: NUMBER ("+" NUMBER)~1..3\nNUMBER: /[0-9]{1,2}/'},
    },
    "scores": {"prompt": "Once upon a time", "max_tokens": 0, "echo": True, "logprobs": 0},
}

CHAT_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "text": {"messages": _MESSAGES, "max_completion_tokens": 16, "temperature": 0},
    "stream": {"messages": _MESSAGES, "max_completion_tokens": 16, "stream": True},
    "json_schema": {
        "messages": _MESSAGES,
        "max_completion_tokens": 64,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": _PERSON, "strict": True},
        },
    },
    "json_object": {
        "messages": _MESSAGES,
        "max_completion_tokens": 64,
        "response_format": {"type": "json_object"},
    },
    "tools": {
        "messages": _MESSAGES,
        "max_completion_tokens": 64,
        "tools": [{"type": "function", "function": {"name": "introduce_yourself"}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "prompt_cache_key": "conversation-1",
        "prompt_cache_options": {"ttl": "30m"},
    },
    "conversation": {
        "messages": [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Who are you?"},
        ],
        "max_completion_tokens": 16,
        "stop": ["\n\n"],
        "top_p": 0.9,
        "deadline_ms": 60000,
    },
}

TOKENIZE_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "text": {"prompt": "Once upon a time", "return_token_strs": True},
    "messages": {"messages": _MESSAGES, "add_generation_prompt": True},
}

DETOKENIZE_REQUESTS: Mapping[str, Mapping[str, object]] = {"tokens": {"tokens": [5, 6, 7]}}

_USAGE = Usage(4, 3, 7, CachedTokens(0))

_ACCOUNT = QuireAccount((Timing(0, 0.0005, 0.011, 0.0096, 0, 0),))

COMPLETION = CompletionBody(
    id=_COMPLETION_ID,
    created=CREATED_S,
    model=MODEL,
    choices=(CompletionChoice(0, " there was a", finish_reason="length"),),
    usage=_USAGE,
    quire=_ACCOUNT,
)

CHAT_COMPLETION = ChatBody(
    id=_CHAT_ID,
    created=CREATED_S,
    model=MODEL,
    choices=(ChatChoice(0, ChatMessageOut("Hello."), None, "stop", None),),
    usage=_USAGE,
    quire=_ACCOUNT,
)

RENDERED = Rendered(
    MODEL,
    2048,
    (RenderedPrompt("Once upon a time", (5, 6, 7), 3, 16),),
    RenderedSampling(1, 1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, None, 0, (), (), (1,)),
)

COMPLETION_EVENTS = event_text(
    CompletionBody(_COMPLETION_ID, CREATED_S, MODEL, (CompletionChoice(0, " there"),)),
    CompletionBody(
        _COMPLETION_ID, CREATED_S, MODEL, (CompletionChoice(0, " was", finish_reason="length"),)
    ),
)

CHAT_EVENTS = event_text(
    ChatChunk(_CHAT_ID, CREATED_S, MODEL, (ChatChunkChoice(0, ChatDelta(role="assistant")),)),
    ChatChunk(
        _CHAT_ID,
        CREATED_S,
        MODEL,
        (ChatChunkChoice(0, ChatDelta("Hello."), finish_reason="stop"),),
    ),
)
