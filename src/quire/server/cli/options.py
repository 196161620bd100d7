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
from quire.scheduler.policy import PolicyName
from quire.server.cli.option import ConfigSection, Option
from quire.server.cli.option_values import (
    MAX_ENGINES,
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
    seconds,
    share,
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
        "Hugging Face id, local folder, GGUF file (of an id: `ID:FILE.gguf`), or `bundled`, the "
        "model in the box; also the positional MODEL. Repeat the flag for several models on one "
        "server, each with the same options.",
        shown="SmolLM2",
    ),
    Option(
        "models-config-file",
        RESOLVED,
        text,
        "File in YAML with several models, each with options of its own, loaded at the start or on "
        "first use (see [Several models](#several-models)). Flags are for all of them.",
        shown="none",
    ),
    Option(
        "served-model-name",
        RESOLVED,
        name_list,
        "Name that clients may ask for; repeat the flag (commas in the variable) for several. "
        "Answers carry the name that was asked for, else the first.",
        shown="MODEL",
    ),
    Option("revision", MODEL, text, "Branch, tag or commit of the model on the hub."),
    Option("trust-remote-code", MODEL, boolean, "Run Python code that comes with the model."),
    Option("device", MODEL, text, "`auto`, `cpu`, `cuda` or `cuda:N`."),
    Option(
        "dtype",
        MODEL,
        one_of(*ModelDtype),
        "Number format of weights and activations: `auto` as the checkpoint has them, but "
        "bfloat16 for float32 where the device multiplies it.",
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
        "Ranks that the weights and KV heads are divided among: a process each, on GPUs one for "
        "each. Sizes of memory are those of a rank (see [scaling](scaling.md#tensor-parallel)).",
    ),
    Option(
        "data-parallel-size",
        ConfigSection.PARALLEL,
        integer(1, MAX_ENGINES),
        "Engines of each model on this machine, behind one server: on CPUs they divide cores and "
        "memory, of GPUs each takes one (see [scaling](scaling.md#several-engines-in-one-box)).",
    ),
    Option(
        "block-size",
        MEMORY,
        one_number_of(*BLOCK_SIZES),
        f"Token places in one block of KV memory: {', '.join(map(str, BLOCK_SIZES))}.",
    ),
    Option(
        "gpu-memory-utilization",
        MEMORY,
        fraction,
        "Share of a GPU's memory for weights, work and KV; on a CPU, share of half the free memory "
        "for work and KV, and no more than can be of use.",
        shown=f"{DEFAULT_SHARE}, if KV memory is not said otherwise",
    ),
    Option(
        "kv-cache-memory-bytes",
        MEMORY,
        byte_count,
        "KV memory in bytes; `512MiB`, `2GiB` or `2G` will do. KV memory is said in one way at "
        "most: as share, bytes, tokens or blocks.",
    ),
    Option("kv-cache-tokens", MEMORY, count, "KV memory for one request of so many tokens."),
    Option("num-gpu-blocks-override", MEMORY, count, "KV memory as a number of blocks."),
    Option(
        "swap-space",
        MEMORY,
        gibibytes,
        "GiB of host memory for preempted requests and evicted prefixes, pinned beside a GPU.",
        shown="4 beside a GPU, 0 on a CPU",
    ),
    Option(
        "preemption-mode",
        SCHEDULING,
        one_of(*PreemptionMode),
        "What happens to a request that must make room: its blocks go to swap space, or it is "
        "computed again, or what costs less by measured speeds.",
    ),
    Option(
        "kv-cache-dtype",
        MEMORY,
        named(one_of(*KVCacheDtype), fp8=KVCacheDtype.FP8_E4M3),
        "Number format of K and V: `auto` as the model computes, `fp8_e4m3` (or `fp8`) and `int8` "
        "in a byte with a scale for each token and head.",
    ),
    Option(
        "disable-hybrid-kv-cache-manager",
        MEMORY,
        boolean,
        "Keep K and V behind windows and chunks to the end, as if all layers saw everything.",
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
        "`auto`: on a CPU, bfloat16 weights packed once, without loss, for the C++ kernels, and "
        "what is between them fused: in 12 bits each where it computes in bfloat16, in 16 where it "
        "computes in float32; on a GPU, merged projections and Triton's kernels between them. "
        "`torch`: PyTorch's own.",
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
        "Folder that keeps weights as the kernels of a CPU pack them, so that the next start of "
        "the same model with the same options reads them instead of packing them.",
        shown="none",
    ),
    Option(
        "pooling",
        MODEL,
        one_of(*PoolingName),
        "The tokens whose states become an embedding: `last`, `mean` of all, `cls` the first; "
        "`auto` as the checkpoint says, else the last.",
    ),
    Option(
        "max-model-len",
        SCHEDULING,
        count,
        "Most tokens of one request, prompt and output.",
        shown="the model's",
    ),
    Option("max-num-seqs", SCHEDULING, count, "Most requests in one step."),
    Option(
        "max-num-batched-tokens",
        SCHEDULING,
        count,
        "Most tokens computed in one step.",
        shown="auto",
    ),
    Option(
        "max-num-queued-reqs", SCHEDULING, count, "Most requests waiting; more are answered 503."
    ),
    Option(
        "scheduling-policy",
        SCHEDULING,
        one_of(*PolicyName),
        "Who is served first: `fcfs` who came first, `priority` who has the least priority number, "
        "`fair` the tenant that was served least for its weight.",
    ),
    Option(
        "async-scheduling",
        SCHEDULING,
        boolean,
        "Schedule and launch a step while the device computes the one before it; what that one "
        "draws is fed forward on the device.",
        shown="on beside a GPU, off on a CPU",
    ),
    Option(
        "enforce-eager",
        MODEL,
        boolean,
        "On a GPU, record no steps as CUDA graphs: a faster start and less memory, slower steps.",
    ),
    Option(
        "cudagraph-mode",
        MODEL,
        one_of(*CUDAGraphMode),
        "On a GPU, the steps that are recorded as CUDA graphs: `full_decode_only` those of one "
        "token a request, `piecewise` all of up to 2,048 tokens in pieces with attention between "
        "them, `full_and_piecewise` those of one token a request whole and the others in pieces, "
        "`none` no steps. Pieces have not yet run on a GPU.",
    ),
    Option(
        "disable-optimizations",
        MODEL,
        some_of(*Optimization),
        "What a CPU does without, to find which kernel is at fault or what each brings: names with "
        f"commas between them, of {', '.join(f'`{name}`' for name in Optimization)}. An "
        "instruction set that is named takes those that contain it along.",
        shown="none",
    ),
    Option(
        "priority-ageing-s",
        SCHEDULING,
        seconds,
        "Seconds of waiting that count as one priority better; with 0 a stream of better requests "
        "may hold one back for ever.",
    ),
    Option(
        "max-skips",
        SCHEDULING,
        integer(0),
        "How many later requests may pass one that waits for blocks; after that all wait for it.",
    ),
    Option(
        "enable-prefix-caching",
        MEMORY,
        boolean,
        "Reuse the KV blocks of equal prompt beginnings.",
    ),
    Option(
        "max-pinned-share",
        SCHEDULING,
        share,
        "The share of KV blocks, 0 to 1, that pinned prefixes (`POST /v1/prefixes`) may hold; room "
        "for one request of `--max-model-len` is left in any case. 0 pins none.",
    ),
    Option(
        "wait-for-prefix",
        SCHEDULING,
        boolean,
        "While one request computes the beginning of another's prompt, the other waits for it "
        "where that is sooner.",
    ),
    Option(
        "otlp-traces-endpoint",
        TRACING,
        http_url,
        "OpenTelemetry collector that gets the spans of each request and one for each call of the "
        "KV cache, by OTLP over HTTP: the whole URL, as in `http://localhost:4318/v1/traces`. "
        "Needs the extra `otel`.",
    ),
    Option(
        "prefix-caching-hash-algo",
        MEMORY,
        one_of(*HashAlgorithm),
        "Hash that finds cached blocks: `sha256`, or `sha256_cbor`, which other programs can "
        "compute too.",
    ),
    Option(
        "prefix-caching-seed",
        MEMORY,
        text,
        "Makes the hashes of blocks the same in every process that is given the same text.",
        shown="random",
    ),
    Option(
        "prefix-cache-dir",
        MEMORY,
        text,
        "Folder that keeps the blocks of the prefix cache beyond a restart, shared by the models "
        "of a server and by replicas; needs `--prefix-cache-bytes`.",
        shown="none",
    ),
    Option(
        "prefix-cache-bytes",
        MEMORY,
        byte_count,
        "Most bytes in `--prefix-cache-dir`, as in `20G`; the least recently used go first.",
        shown="none",
    ),
    Option(
        "kv-transfer-listen",
        MEMORY,
        host_and_port,
        "`HOST:PORT` where other engines of the model get the blocks in `--prefix-cache-dir`.",
        shown="none",
    ),
    Option(
        "kv-transfer-peer",
        MEMORY,
        host_and_port_list,
        "`HOST:PORT` of an engine to get blocks from that this one lacks; repeat the flag (commas "
        "in the variable) for several. Needs `--prefix-cache-dir` too.",
        field="kv_transfer_peers",
        shown="none",
    ),
    Option(
        "kv-transfer-secret-file",
        MEMORY,
        text,
        "File with a secret of 16 bytes or more that engines prove to each other that they know; "
        "must be given where an address is not of this machine alone.",
        shown="none",
    ),
    Option(
        "enable-kv-cache-events",
        TRACING,
        boolean,
        "Tell at `/v1/kv_events` which blocks the prefix cache gains and loses. Any API key may "
        "read it unless there is an admin key, and it shows the token ids of everyone's prompts.",
    ),
    Option(
        "flight-recorder-minutes",
        ConfigSection.RECORDING,
        minutes,
        "Keep what went into the scheduler in the last minutes, up to 32 MiB: counts, times and "
        "which blocks were equal, no text. It is written to a file when the engine ends, for "
        "`quire replay`. 0 records nothing.",
    ),
    Option(
        "flight-recorder-dir",
        ConfigSection.RECORDING,
        text,
        "Directory for the files of the flight recorder; the newest 16 are kept.",
        shown="a directory `quire-flight-UID` in the one for temporary files",
    ),
    *SERVER_OPTIONS,
)
