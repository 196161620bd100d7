"""Requests that any server answers, and answers as they come: what the document shows."""

from collections.abc import Mapping

from quire.engine.messages import EngineFacts, LayerGroupFacts, MemoryFacts, ReceiptLine
from quire.server.apis.descriptions import CREATED_S
from quire.server.apis.openai.examples import COMPLETION
from quire.server.app.wire import CacheMiss, CacheProbe, Loads, ModelInfo, ModelLoads, ServerInfo
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
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

CACHE_PROBE = CacheProbe(MODEL, 100, 64, 48, CacheMiss("differs", 70))
CACHE_PROBE_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "prompt": {"prompt": "Once upon a time"},
    "conversation": {"messages": [{"role": "user", "content": "Hello"}]},
}
SUMMARY = TimelineSummary(COMPLETION.id, "my-request-1", CREATED_S, MODEL, "ended", 93.5, 1, 5, 16)
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
TIMELINE = TimelineOut(
    id=COMPLETION.id,
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
            events=(EventOut(1.5, "queued", "Queued as the first.", 0, "requests_ahead"),),
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


KV_EVENTS = (
    'id: 1\ndata: {"block_hashes":["9f86d081"],"parent_block_hash":null,"token_ids":[5,6],'
    '"block_size":2,"group_idx":0,"medium":"GPU","lora_name":null,"type":"BlockStored"}\n\n'
)
METRICS_TEXT = (
    "# HELP quire:num_requests_running Requests that are being computed.\n"
    "# TYPE quire:num_requests_running gauge\n"
    f'quire:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0\n'
)
