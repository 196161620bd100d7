"""Every option of `quire serve`, once: flag, variable, section of the configuration, parser, help.

A choice is parsed by the enum that owns it. Defaults are those of the configuration classes.
"""

from quire.cache.block_hash import HashAlgorithm
from quire.cache.sizing import BLOCK_SIZES, DEFAULT_SHARE
from quire.engine.config import MAX_RANKS, PoolingName
from quire.models.config import (
    AttentionBackendName,
    CUDAGraphMode,
    KVCacheDtype,
    LinearBackend,
    ModelDtype,
    Quantization,
)
from quire.models.optimizations import Optimization
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.server.cli.option import ConfigSection, Option
from quire.server.cli.option_values import (
    MAX_ENGINES,
    alias_list,
    boolean,
    byte_count,
    count,
    fraction,
    gibibytes,
    host_and_port,
    host_and_port_list,
    http_url,
    integer,
    minutes,
    model_list,
    name_list,
    named,
    one_number_of,
    one_of,
    priority_targets,
    seconds,
    share,
    some_milliseconds,
    some_of,
    text,
    threads,
)
from quire.server.cli.server_options import SERVER_OPTIONS

MODEL, MEMORY = ConfigSection.MODEL, ConfigSection.MEMORY
SCHEDULING, TRACING = ConfigSection.SCHEDULING, ConfigSection.TRACING
RESOLVED = ConfigSection.RESOLVED

OPTIONS: tuple[Option, ...] = (
    Option(
        "model",
        RESOLVED,
        model_list,
        "Hugging Face id, local folder, GGUF file (with an id: `ID:FILE.gguf`), or `bundled` for "
        "the small model in the package; also the positional MODEL. Repeat the flag to serve "
        "several models with the same options.",
        shown="SmolLM2",
    ),
    Option(
        "models-config-file",
        RESOLVED,
        text,
        "YAML file with several models, each with its own options, loaded at the start or on "
        "first use (see [Several models](#several-models)). Flags are defaults for all of them.",
        shown="none",
    ),
    Option(
        "served-model-name",
        RESOLVED,
        name_list,
        "Name of the model in requests; repeat the flag (commas in the variable) for several. "
        "Answers have the name of the request, or the first name.",
        shown="MODEL",
    ),
    Option(
        "model-alias",
        RESOLVED,
        alias_list,
        "`PATTERN=NAME`: requests for a name that is not served and that the shell pattern "
        "matches, as `claude-*`, are for NAME, which their answers carry. Repeat the flag (commas "
        "in the variable) for several; the first that matches counts.",
        shown="none",
    ),
    Option("revision", MODEL, text, "Branch, tag or commit of the model on the hub."),
    Option("trust-remote-code", MODEL, boolean, "Run Python code of the checkpoint."),
    Option("device", MODEL, text, "`auto`, `cpu`, `cuda` or `cuda:N`."),
    Option(
        "dtype",
        MODEL,
        one_of(*ModelDtype),
        "Dtype of weights and activations. `auto`: the dtype of the checkpoint, but bfloat16 "
        "instead of float32 if the device multiplies bfloat16.",
    ),
    Option(
        "num-threads",
        MODEL,
        threads,
        "CPU threads of the engine, or of each of its ranks.",
        shown="auto",
    ),
    Option(
        "tensor-parallel-size",
        MODEL,
        integer(1, MAX_RANKS),
        "Number of ranks that share the weights and KV heads, a process each, and on GPUs one GPU "
        "each. Memory sizes apply to one rank (see [scaling](scaling.md#tensor-parallel)).",
    ),
    Option(
        "data-parallel-size",
        ConfigSection.PARALLEL,
        integer(1, MAX_ENGINES),
        "Number of engines of each model on this machine, behind one server. On CPUs they divide "
        "cores and memory; on GPUs each takes one GPU (see "
        "[scaling](scaling.md#several-engines-in-one-box)).",
    ),
    Option(
        "block-size",
        MEMORY,
        one_number_of(*BLOCK_SIZES),
        f"Tokens per KV block: {', '.join(map(str, BLOCK_SIZES))}.",
    ),
    Option(
        "gpu-memory-utilization",
        MEMORY,
        fraction,
        "On a GPU, share of its memory for weights, activations and KV cache. On a CPU, share of "
        "half the free memory for activations and KV cache, at most what requests can use.",
        shown=f"{DEFAULT_SHARE} without other KV sizes",
    ),
    Option(
        "kv-cache-memory-bytes",
        MEMORY,
        byte_count,
        "KV memory in bytes, also as `512MiB`, `2GiB` or `2G`. Set KV memory in only one way: as "
        "share, bytes, tokens or blocks.",
    ),
    Option(
        "kv-cache-tokens", MEMORY, count, "KV memory for one request with this number of tokens."
    ),
    Option("num-gpu-blocks-override", MEMORY, count, "KV memory as a number of blocks."),
    Option(
        "num-recurrent-states",
        MEMORY,
        integer(2, 1 << 30),
        "States of models with recurrent layers: one is the null state, each running request has "
        "one, and the others are snapshots of prefixes.",
        shown="two for each of `--max-num-seqs`, and a tenth of KV memory",
    ),
    Option(
        "state-snapshot-interval",
        MEMORY,
        integer(0, 1 << 30),
        "Tokens between further snapshots of states in a prompt, beside those at its end and where "
        "prompts part (see [recurrent layers](prefix-cache.md#recurrent-layers)). 0: none.",
    ),
    Option(
        "swap-space",
        MEMORY,
        gibibytes,
        "GiB of host memory for preempted requests and evicted prefixes, pinned if the device is "
        "a GPU. With recurrent layers half of it is for [states](prefix-cache.md#in-host-memory).",
        shown="4 with a GPU, 0 on a CPU",
    ),
    Option(
        "preemption-mode",
        SCHEDULING,
        one_of(*PreemptionMode),
        "Method of preemption: `swap` blocks and states to host memory, `recompute` the tokens, or "
        "`auto`, whichever is faster by the measured speeds.",
    ),
    Option(
        "kv-cache-dtype",
        MEMORY,
        named(one_of(*KVCacheDtype), fp8=KVCacheDtype.FP8_E4M3),
        "Dtype of K and V. `auto`: the dtype of the model. `fp8_e4m3` (or `fp8`) and `int8`: one "
        "byte, with a scale for each token and head.",
    ),
    Option(
        "disable-hybrid-kv-cache-manager",
        MEMORY,
        boolean,
        "Keep K and V of tokens behind sliding windows and chunks, as if all layers had full "
        "attention.",
    ),
    Option(
        "attention-backend",
        MODEL,
        one_of(*AttentionBackendName),
        AttentionBackendName.described(),
    ),
    Option(
        "linear-backend",
        MODEL,
        one_of(*LinearBackend),
        "`auto`: on a CPU, C++ kernels with fused operations between them and bfloat16 weights "
        "packed once, without loss: in 12 bits to compute in bfloat16, in 16 to compute in "
        "float32. On a GPU, merged projections with Triton kernels between them. `torch`: "
        "PyTorch's own.",
    ),
    Option(
        "quantization",
        MODEL,
        one_of(*Quantization),
        Quantization.described(),
    ),
    Option(
        "weights-cache-dir",
        MODEL,
        text,
        "Folder for weights as packed by the CPU kernels. The next start of the same model with "
        "the same options reads them instead of packing.",
        shown="none",
    ),
    Option(
        "pooling",
        MODEL,
        one_of(*PoolingName),
        "Pooling of token states to an embedding: `last`, `mean` of all, or `cls` for the first. "
        "`auto`: as the checkpoint says, otherwise the last.",
    ),
    Option(
        "max-model-len",
        SCHEDULING,
        count,
        "Maximum tokens of one request, prompt and output.",
        shown="the model's",
    ),
    Option("max-num-seqs", SCHEDULING, count, "Maximum requests in one step."),
    Option(
        "max-num-batched-tokens",
        SCHEDULING,
        count,
        "Maximum tokens in one step, the token budget.",
        shown="auto",
    ),
    Option(
        "max-num-queued-reqs",
        SCHEDULING,
        count,
        "Maximum waiting requests; further ones are answered 503.",
    ),
    Option(
        "scheduling-policy",
        SCHEDULING,
        one_of(*PolicyName),
        "Order of service: `fcfs` by arrival, `priority` by the smallest priority number, `fair` "
        "by the tenant with the least service for its weight.",
    ),
    Option(
        "queue-order",
        SCHEDULING,
        one_of(*QueueOrder),
        "Order of requests that the policy holds equal: `arrival`, or `shortest` for those first "
        "that are expected to take the least time of the device, within a bound.",
    ),
    Option(
        "target-ttft-ms",
        SCHEDULING,
        some_milliseconds,
        "Target of milliseconds to the first token, where neither a request, its key nor its "
        "priority has one: `quire:slo_attained_total` and `quire:slo_missed_total` count by it.",
        shown="none",
    ),
    Option(
        "target-itl-ms",
        SCHEDULING,
        some_milliseconds,
        "Target of milliseconds between tokens, where neither a request, its key nor its priority "
        "has one: prompts get what a step of that time leaves them. Without one they take no more "
        "than seven times the time that the outputs of a step take.",
        shown="none",
    ),
    Option(
        "priority-targets",
        SCHEDULING,
        priority_targets,
        "Latency targets by priority, where neither a request nor its key has one, as in "
        "`0:ttft_ms=500,itl_ms=40;1:ttft_ms=2000`; only with `--scheduling-policy priority`.",
        shown="none",
    ),
    Option(
        "async-scheduling",
        SCHEDULING,
        boolean,
        "Overlap steps: schedule and launch a step while the device computes the previous one, "
        "whose sampled tokens stay on the device as inputs.",
        shown="on with a GPU, off on a CPU",
    ),
    Option(
        "enforce-eager",
        MODEL,
        boolean,
        "On a GPU, capture no CUDA graphs: a faster start and less memory, slower steps.",
    ),
    Option(
        "cudagraph-mode",
        MODEL,
        one_of(*CUDAGraphMode),
        "On a GPU, the steps that run as CUDA graphs: `full_decode_only` steps of one token per "
        "request, `piecewise` all steps of up to 2,048 tokens, in pieces with attention between "
        "them, `full_and_piecewise` full graphs for steps of one token per request and pieces for "
        "others, `none` no steps. Pieces have not yet run on a GPU.",
    ),
    Option(
        "disable-optimizations",
        MODEL,
        some_of(*Optimization),
        "Optimizations to disable on a CPU, to find a faulty kernel or measure the gain of one: a "
        f"comma-separated list of {', '.join(f'`{name}`' for name in Optimization)}. An "
        "instruction set also disables those that contain it.",
        shown="none",
    ),
    Option(
        "priority-ageing-s",
        SCHEDULING,
        seconds,
        "Seconds of waiting that improve the priority by one in the queue, above 0 and at most "
        "86400, so that no stream of better requests holds back another one for ever.",
    ),
    Option(
        "max-skips",
        SCHEDULING,
        integer(0),
        "Number of later requests that may pass a request that waits for blocks; after that they "
        "wait for it.",
    ),
    Option(
        "enable-prefix-caching",
        MEMORY,
        boolean,
        "Reuse the KV blocks of equal prompt prefixes.",
    ),
    Option(
        "max-pinned-share",
        SCHEDULING,
        share,
        "Share of KV blocks, 0 to 1, for pinned prefixes (`POST /v1/prefixes`); room for one "
        "request of `--max-model-len` always remains. 0 allows no pins.",
    ),
    Option(
        "wait-for-prefix",
        SCHEDULING,
        boolean,
        "Let a request wait while another one computes a prefix of its prompt, if that is faster "
        "than computing it twice.",
    ),
    Option(
        "keep-sessions",
        SCHEDULING,
        boolean,
        "Evict the KV blocks of agents' sessions last while their next turn is expected, and those "
        "that clients ask to keep; let such turns go before new sessions.",
    ),
    Option(
        "otlp-traces-endpoint",
        TRACING,
        http_url,
        "OpenTelemetry collector for the spans of requests and of KV cache calls, by OTLP over "
        "HTTP: the full URL, as in `http://localhost:4318/v1/traces`. Needs the extra `otel`.",
    ),
    Option(
        "prefix-caching-hash-algo",
        MEMORY,
        one_of(*HashAlgorithm),
        "Hash of cached blocks: `sha256`, or `sha256_cbor`, which other programs can compute.",
    ),
    Option(
        "prefix-caching-seed",
        MEMORY,
        text,
        "Seed of block hashes, which are equal in processes with the same text here.",
        shown="random",
    ),
    Option(
        "prefix-cache-dir",
        MEMORY,
        text,
        "Folder that keeps the prefix cache (blocks, and states of recurrent layers) over "
        "restarts, shared by the models of a server and by replicas; needs `--prefix-cache-bytes`.",
        shown="none",
    ),
    Option(
        "prefix-cache-bytes",
        MEMORY,
        byte_count,
        "Maximum bytes in `--prefix-cache-dir`, as in `20G`; the least recently used blocks are "
        "deleted first.",
        shown="none",
    ),
    Option(
        "kv-transfer-listen",
        MEMORY,
        host_and_port,
        "`HOST:PORT` that offers the blocks in `--prefix-cache-dir` to other engines of the model.",
        shown="none",
    ),
    Option(
        "kv-transfer-peer",
        MEMORY,
        host_and_port_list,
        "`HOST:PORT` of an engine that has blocks which this one lacks; repeat the flag (commas "
        "in the variable) for several. Needs `--prefix-cache-dir`.",
        field="kv_transfer_peers",
        shown="none",
    ),
    Option(
        "kv-transfer-secret-file",
        MEMORY,
        text,
        "File with a secret of 16 bytes or more that authenticates the engines to each other; "
        "required unless all addresses are on this machine.",
        shown="none",
    ),
    Option(
        "enable-kv-cache-events",
        TRACING,
        boolean,
        "Stream the stored and removed blocks of the prefix cache at `/v1/kv_events`. Any API key "
        "may read the stream unless there is an admin key, and it contains the token ids of all "
        "prompts.",
    ),
    Option(
        "flight-recorder-minutes",
        ConfigSection.RECORDING,
        minutes,
        "Record the scheduler's inputs of the last minutes, up to 32 MiB: counts, times and equal "
        "blocks, no text. When the engine ends, they are written to a file for `quire replay`. 0 "
        "records nothing.",
    ),
    Option(
        "flight-recorder-dir",
        ConfigSection.RECORDING,
        text,
        "Folder for the files of the flight recorder; the newest 16 are kept.",
        shown="`quire-flight-UID` in the folder for temporary files",
    ),
    *SERVER_OPTIONS,
)
