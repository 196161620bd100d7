"""All checks of the acceptance, by stage, in the order of their worth: a budget that ends early
takes the last ones away."""

from bench.gpu.check import Check

CORRECTNESS = "bench.gpu.correctness"
ATTENTION = f"{CORRECTNESS}.attention"
MODELS = "bench.gpu.speed.models"
CEILINGS = "bench.gpu.speed.ceilings:check_ceilings"
GRAPHS = f"{CORRECTNESS}.graphs"
ENGINE = f"{CORRECTNESS}.engine"
TOOLS = f"{CORRECTNESS}.tools"
PEERS = "bench.gpu.speed.peers"
EXACT = "float64, within rounding bounds; foreign memory is NaN or random"
REPLAYED = "an eager step, for padded sizes with three sets of inputs"
PIECES = (
    "eager steps, for random mixes of chunks and single tokens in captured pieces: logits, K and "
    "V, and no writes beyond a step's own tokens"
)
ATTENTION_SPEED = (
    "bytes and operations over the ceilings; a result above its ceiling is an error of "
    "measurement, and fails"
)
STAGES: dict[str, tuple[Check, ...]] = {
    "correctness": (
        Check("attention-bfloat16", f"{ATTENTION}:check_bfloat16", EXACT, 150, 40),
        Check(
            "fused-layers",
            f"{CORRECTNESS}.layers:check_layers",
            "the replaced layers, with one launch less per operation",
            120,
            30,
        ),
        Check("graph-llama", f"{GRAPHS}:check_llama", REPLAYED, 90, 25),
        Check(
            "engine-texts",
            f"{ENGINE}:check_texts",
            "the same text with overlap, swap and recompute",
            120,
            40,
        ),
        Check(
            "engine-waits",
            f"{ENGINE}:check_waits",
            "50 decode steps, none of which waits for the device",
            90,
            25,
        ),
        Check(
            "captures",
            f"{TOOLS}:check_captures",
            "a process that has captured nothing, after a failed capture",
            60,
            20,
        ),
        Check(
            "recurrent-layers",
            f"{CORRECTNESS}.recurrent:check_recurrent",
            "the same operations in torch; the same bits however sequences are cut",
            150,
            40,
        ),
        Check("graph-recurrent", f"{GRAPHS}:check_recurrent", REPLAYED, 120, 40),
        Check("grouped-products", f"{CORRECTNESS}.grouped:check_grouped", EXACT, 120, 30),
        Check("expert-products", f"{CORRECTNESS}.experts:check_experts", EXACT, 120, 30),
        Check(
            "sampled-tokens",
            f"{CORRECTNESS}.sampling:check_sampling",
            "all tokens sampled by torch's operations",
            120,
            25,
        ),
        Check(
            "swapped-blocks",
            f"{CORRECTNESS}.swap:check_swap",
            "single copies, byte by byte, while steps overwrite blocks",
            60,
            15,
        ),
        Check("attention-fp8", f"{ATTENTION}:check_fp8", EXACT, 150, 50),
        Check("graph-gpt-oss", f"{GRAPHS}:check_gpt_oss", REPLAYED, 90, 30),
        Check(
            "graph-pieces",
            f"{CORRECTNESS}.piece_graphs:check_pieces",
            PIECES,
            120,
            40,
        ),
        Check(
            "attention-fresh",
            f"{CORRECTNESS}.fresh_attention:check_fresh",
            "attention within a prompt, against paged attention",
            90,
            30,
        ),
        Check("graph-deepseek", f"{GRAPHS}:check_deepseek", REPLAYED, 90, 30),
        Check("graph-gemma2", f"{GRAPHS}:check_gemma2", REPLAYED, 90, 30),
        Check(
            "graph-refused",
            f"{GRAPHS}:check_refused",
            "a process that continues after a refused capture",
            90,
            25,
        ),
        Check("graph-long-rope", f"{GRAPHS}:check_long_rope", REPLAYED, 90, 30),
        Check("attention-int8", f"{ATTENTION}:check_int8", EXACT, 150, 50),
        Check("attention-float16", f"{ATTENTION}:check_float16", EXACT, 150, 40),
        Check("attention-float32", f"{ATTENTION}:check_float32", EXACT, 150, 50),
        Check(
            "fidelity", f"{TOOLS}:check_fidelity", "transformers, in float32 and bfloat16", 200, 120
        ),
        Check(
            "sanitizer",
            f"{TOOLS}:check_sanitizer",
            "compute-sanitizer finds no access out of bounds",
            150,
            90,
        ),
        Check(
            "receipt",
            f"{CORRECTNESS}.receipt:check_receipt",
            "the device's memory against the memory receipt",
            90,
            30,
            is_alone=True,
        ),
        Check(
            "device",
            CEILINGS,
            "its ceilings, and its memory by writing and reading",
            60,
            20,
            is_alone=True,
        ),
    ),
    "speed": (
        Check(
            "ceilings",
            CEILINGS,
            "copies, reads, matrix products, launches: the ceilings for the other checks",
            60,
            20,
            is_alone=True,
        ),
        Check(
            "attention",
            "bench.gpu.speed.attention:check_attention",
            ATTENTION_SPEED,
            90,
            45,
            is_alone=True,
        ),
        Check(
            "model-8b",
            f"{MODELS}:check_8b",
            "step time against the time to read weights, K and V; idle time of the device",
            180,
            90,
            is_alone=True,
        ),
        Check(
            "tiles",
            "bench.gpu.speed.tiles:check_tiles",
            "other tile sizes against the selected ones",
            120,
            60,
            is_alone=True,
        ),
        Check(
            "pieces",
            "bench.gpu.speed.pieces:check_pieces",
            "TTFT of prompts of 32 to 2,000 tokens, eager and piecewise",
            120,
            50,
            is_alone=True,
        ),
        Check(
            "peer-8b",
            f"{PEERS}:check_8b",
            "transformers' continuous batching, warm, in several settings",
            180,
            120,
            is_alone=True,
        ),
        Check(
            "sampling",
            "bench.gpu.speed.sampling:check_sampling",
            "top-p and top-k of up to 128 rows of 128k",
            60,
            20,
            is_alone=True,
        ),
        Check(
            "experts",
            "bench.gpu.speed.experts:check_experts",
            "bytes and operations over the ceilings",
            90,
            30,
            is_alone=True,
        ),
        Check(
            "recurrent",
            "bench.gpu.speed.recurrent:check_recurrent",
            "decode steps against reading and writing their states; tokens per second of prompts",
            90,
            30,
            is_alone=True,
        ),
        Check(
            "swap",
            "bench.gpu.speed.swap:check_swap",
            "blocks per second in each direction, against the ceiling of copies",
            60,
            20,
            is_alone=True,
        ),
        Check(
            "model-1b",
            f"{MODELS}:check_1b",
            "like model-8b, also without CUDA graphs, and with sampling",
            150,
            60,
            is_alone=True,
        ),
        Check("peer-1b", f"{PEERS}:check_1b", "like peer-8b", 180, 90, is_alone=True),
        Check(
            "attention-beside",
            "bench.gpu.speed.attention_beside:check_beside",
            "PyTorch's varlen_attn against the Triton kernels, for prompts without context",
            90,
            40,
            is_alone=True,
        ),
    ),
}
