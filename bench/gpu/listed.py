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
EXACT = "float64, within what rounding explains; memory that is not theirs is NaN or rubbish"
REPLAYED = "a launched step, for padded sizes that are filled anew three times"
PIECES = (
    "launched steps, for random mixes of chunks and single tokens in captured pieces: logits, keys "
    "and values, and nothing stored beyond a step's own tokens"
)
ATTENTION_SPEED = (
    "bytes and operations over the ceilings; what is faster than its ceiling is an error of "
    "measurement, and fails"
)
STAGES: dict[str, tuple[Check, ...]] = {
    "correctness": (
        Check("attention-bfloat16", f"{ATTENTION}:check_bfloat16", EXACT, 150, 40),
        Check(
            "fused-layers",
            f"{CORRECTNESS}.layers:check_layers",
            "the layers that they replace, in one launch less for each operation",
            120,
            30,
        ),
        Check("graph-llama", f"{GRAPHS}:check_llama", REPLAYED, 90, 25),
        Check(
            "engine-texts",
            f"{ENGINE}:check_texts",
            "the same text overlapped, swapped and recomputed",
            120,
            40,
        ),
        Check(
            "engine-waits",
            f"{ENGINE}:check_waits",
            "50 decode steps of which none waits for the device",
            90,
            25,
        ),
        Check(
            "captures",
            f"{TOOLS}:check_captures",
            "a process that goes on after a capture that failed, as if there had been none",
            60,
            20,
        ),
        Check("grouped-products", f"{CORRECTNESS}.grouped:check_grouped", EXACT, 120, 30),
        Check("expert-products", f"{CORRECTNESS}.experts:check_experts", EXACT, 120, 30),
        Check(
            "sampled-tokens",
            f"{CORRECTNESS}.sampling:check_sampling",
            "the tokens that torch's operations sample, to the last one",
            120,
            25,
        ),
        Check(
            "swapped-blocks",
            f"{CORRECTNESS}.swap:check_swap",
            "copies one by one, byte by byte, while steps overwrite blocks",
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
            "attention within a prompt alone, beside the paged one",
            90,
            30,
        ),
        Check("graph-deepseek", f"{GRAPHS}:check_deepseek", REPLAYED, 90, 30),
        Check("graph-gemma2", f"{GRAPHS}:check_gemma2", REPLAYED, 90, 30),
        Check(
            "graph-refused",
            f"{GRAPHS}:check_refused",
            "a process that goes on after a capture that was refused",
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
            "what the device has against the memory receipt",
            90,
            30,
            is_alone=True,
        ),
        Check(
            "device",
            CEILINGS,
            "its ceilings, and that its memory holds what is written",
            60,
            20,
            is_alone=True,
        ),
    ),
    "speed": (
        Check(
            "ceilings",
            CEILINGS,
            "copy, read, products, launches: what the others are stated beside",
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
            "steps beside the time to read weights, K and V; how long the device is idle",
            180,
            90,
            is_alone=True,
        ),
        Check(
            "tiles",
            "bench.gpu.speed.tiles:check_tiles",
            "other tiles beside those of the rule",
            120,
            60,
            is_alone=True,
        ),
        Check(
            "pieces",
            "bench.gpu.speed.pieces:check_pieces",
            "the first token of prompts of 32 to 2,000 tokens, launched and in captured pieces",
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
            "swap",
            "bench.gpu.speed.swap:check_swap",
            "blocks a second each way, beside the ceiling of copies",
            60,
            20,
            is_alone=True,
        ),
        Check(
            "model-1b",
            f"{MODELS}:check_1b",
            "as model-8b, also without graphs, and with sampling",
            150,
            60,
            is_alone=True,
        ),
        Check("peer-1b", f"{PEERS}:check_1b", "as peer-8b", 180, 90, is_alone=True),
        Check(
            "attention-beside",
            "bench.gpu.speed.attention_beside:check_beside",
            "PyTorch's varlen_attn beside Triton's kernels, for prompts alone",
            90,
            40,
            is_alone=True,
        ),
    ),
}
