"""Requests that any server answers, and answers as they come: what the document shows."""

from collections.abc import Mapping

import msgspec

from quire.engine.messages import EngineFacts, LayerGroupFacts, MemoryFacts, ReceiptLine
from quire.server.apis.batches.protocol import BatchList, BatchObject, FileList, FileObject
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
from quire.server.app.models.wire import (
    FlightRecordWritten,
    ModelAbilities,
    ModelCard,
    ModelChanged,
    ModelStatus,
)
from quire.server.app.wire import CacheMiss, CacheProbe, Loads, ModelInfo, ModelLoads, ServerInfo
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.generation.usage import CachedTokens, QuireAccount, Timing, Usage
from quire.server.models.sampling_defaults import SamplingDefaults
from quire.server.observability.timeline_view import (
    ChoiceOut,
    Counts,
    EventOut,
    SpanOut,
    TimelineOut,
    TimelineSummary,
)
from quire.version import __version__

CREATED_S = 1767225600
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
RESET_REQUESTS: Mapping[str, Mapping[str, object]] = {"all": {}}

_LOADED = ModelStatus("loaded")
CARD = ModelCard(
    MODEL,
    CREATED_S,
    MODEL,
    2048,
    _LOADED,
    ModelAbilities(
        completion=True,
        chat=True,
        tools=True,
        reasoning=False,
        structured_outputs=True,
        embeddings=True,
        rerank=False,
        tool_format="hermes",
    ),
)
CACHE_PROBE = CacheProbe(MODEL, 100, 64, 48, CacheMiss("differs", 70))
CACHE_PROBE_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "prompt": {"prompt": "Once upon a time"},
    "conversation": {"messages": [{"role": "user", "content": "Hello"}]},
}
MODEL_LOADED = ModelChanged(MODEL, _LOADED)
MODEL_UNLOADED = ModelChanged(MODEL, ModelStatus("unloaded"))
FLIGHT_RECORD = FlightRecordWritten(
    MODEL,
    "/var/lib/quire/flight/20261125T004310Z-123456789-asked.flight",
    bytes=1_204_317,
    began=CREATED_S,
    ended=CREATED_S + 590,
    steps=31_415,
)
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
SUMMARY = TimelineSummary(_COMPLETION_ID, "my-request-1", CREATED_S, MODEL, "ended", 93.5, 1, 5, 16)
_BLOCKS = {"free": 100, "cached": 50, "active": 50, "swapped": 0}
LOADS = Loads(
    num_running=2,
    num_waiting=1,
    max_num_seqs=256,
    max_num_queued_reqs=1024,
    kv_cache_usage=0.25,
    blocks=_BLOCKS,
    predicted_wait_s=0.5,
    models=(ModelLoads(MODEL, "loaded", 2, 1, 0, 256, 1024, 0.25, _BLOCKS, 0.5),),
)
RENDERED = Rendered(
    MODEL,
    2048,
    (RenderedPrompt("Once upon a time", (5, 6, 7), 3, 16),),
    RenderedSampling(1, 1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, None, 0, (), (), (1,)),
)
TIMELINE = TimelineOut(
    id=_COMPLETION_ID,
    created=CREATED_S,
    model=MODEL,
    state="ended",
    refused=None,
    total_ms=93.5,
    choices=(
        ChoiceOut(
            index=0,
            finish="max_tokens",
            parts={
                "received": 1.25,
                "queued": 0.5,
                "prefill": 11.0,
                "decode": 80.0,
                "preempted": 0.0,
                "delivered": 0.75,
            },
            counts=Counts(9, 0, 16, 0, 0),
            events=(EventOut(1.5, "queued", 0, "requests_ahead"),),
            spans=(SpanOut("received", 0.0, 1.25), SpanOut("queued", 1.25, 1.75)),
        ),
    ),
)
_FACTS = EngineFacts(
    model_type="llama",
    dtype="float32",
    device="cpu",
    vocab_size=2048,
    max_model_len=2048,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    block_size=16,
    num_blocks=1000,
    num_host_blocks=0,
    eos_token_ids=(1,),
    receipt=(ReceiptLine("weights", 4_000_000), ReceiptLine("kv_cache", 32_000_000)),
    memory=MemoryFacts(
        kv_dtype="float32",
        kv_tokens=15_984,
        kv_token_bytes=2048,
        layer_groups=(LayerGroupFacts("full_attention", None, 4),),
        padding_share=0.0,
        max_model_len_fits=2048,
        max_concurrency=7.8,
        why_num_blocks="all that memory allows",
        why_max_num_batched_tokens="measured",
        passed_token_bytes=2048,
    ),
    startup_s={"load": 0.5},
)
_STARTUP_S = {"imports": 1.5, "load": 0.5, "total": 2.3}
_MEMORY: dict[str, object] = {
    "lines": {"weights": 4_000_000, "kv_cache": 32_000_000},
    "num_blocks": 1000,
}
_DEFAULTS = SamplingDefaults(temperature=0.7)
SERVER_INFO = ServerInfo(
    version=__version__,
    phase="ready",
    facts=_FACTS,
    startup_s=_STARTUP_S,
    memory=_MEMORY,
    sampling_defaults=_DEFAULTS,
    config={"served_model_names": [MODEL], "host": "127.0.0.1", "port": 8000},
    models=(
        ModelInfo(
            MODEL,
            "loaded",
            _FACTS,
            _STARTUP_S,
            _MEMORY,
            _DEFAULTS,
            {"served_model_names": [MODEL], "tool_call_parser": "auto"},
        ),
    ),
)

FILE = FileObject(
    id="file-0123456789abcdef",
    bytes=1024,
    created_at=CREATED_S,
    expires_at=CREATED_S + 2592000,
    filename="requests.jsonl",
    purpose="batch",
)
FILES = FileList(data=(FILE,), has_more=False, first_id=FILE.id, last_id=FILE.id)
BATCH = BatchObject(
    id="batch_0123456789abcdef",
    endpoint="/v1/completions",
    input_file_id=FILE.id,
    completion_window="24h",
    created_at=CREATED_S,
    expires_at=CREATED_S + 86400,
)
BATCHES = BatchList(data=(BATCH,), has_more=False, first_id=BATCH.id, last_id=BATCH.id)


def events(*bodies: msgspec.Struct, done: bool = True) -> str:
    """Server-sent events with these bodies, as a stream of an answer is."""
    sent = [msgspec.json.encode(body).decode() for body in bodies]
    return "".join(f"data: {each}\n\n" for each in (*sent, *(("[DONE]",) if done else ())))


COMPLETION_EVENTS = events(
    CompletionBody(_COMPLETION_ID, CREATED_S, MODEL, (CompletionChoice(0, " there"),)),
    CompletionBody(
        _COMPLETION_ID, CREATED_S, MODEL, (CompletionChoice(0, " was", finish_reason="length"),)
    ),
)
CHAT_EVENTS = events(
    ChatChunk(_CHAT_ID, CREATED_S, MODEL, (ChatChunkChoice(0, ChatDelta(role="assistant")),)),
    ChatChunk(
        _CHAT_ID,
        CREATED_S,
        MODEL,
        (ChatChunkChoice(0, ChatDelta("Hello."), finish_reason="stop"),),
    ),
)
KV_EVENTS = (
    'id: 1\ndata: {"block_hashes":["9f86d081"],"parent_block_hash":null,"token_ids":[5,6],'
    '"block_size":2,"group_idx":0,"medium":"GPU","lora_name":null,"type":"BlockStored"}\n\n'
)
METRICS_TEXT = (
    "# HELP quire:num_requests_running Requests that are being computed.\n"
    "# TYPE quire:num_requests_running gauge\n"
    f'quire:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0\n'
)
