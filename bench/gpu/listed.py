"""All checks of the acceptance, by stage, those first that matter most."""

from bench.gpu.check import Check

CORRECTNESS = "bench.gpu.correctness"
ATTENTION = f"{CORRECTNESS}.attention"
MODELS = "bench.gpu.speed.models"
CEILINGS = "bench.gpu.speed.ceilings:check_ceilings"
GRAPHS = f"{CORRECTNESS}.graphs"
ENGINE = f"{CORRECTNESS}.engine"
TOOLS = f"{CORRECTNESS}.tools"
PEERS = "bench.gpu.speed.peers"
STAGES: dict[str, tuple[Check, ...]] = {
    "correctness": (
        Check("attention-bfloat16", f"{ATTENTION}:check_bfloat16", 150),
        Check("attention-float16", f"{ATTENTION}:check_float16", 150),
        Check("attention-float32", f"{ATTENTION}:check_float32", 150),
        Check("attention-fp8", f"{ATTENTION}:check_fp8", 150),
        Check("attention-int8", f"{ATTENTION}:check_int8", 150),
        Check(
            "attention-flashinfer",
            f"{CORRECTNESS}.flashinfer_attention:check_flashinfer",
            150,
        ),
        Check("attention-fresh", f"{CORRECTNESS}.fresh_attention:check_fresh", 90),
        Check("expert-products", f"{CORRECTNESS}.experts:check_experts", 120),
        Check("fused-layers", f"{CORRECTNESS}.layers:check_layers", 120),
        Check("sampled-tokens", f"{CORRECTNESS}.sampling:check_sampling", 120),
        Check("swapped-blocks", f"{CORRECTNESS}.swap:check_swap", 60),
        Check("graph-llama", f"{GRAPHS}:check_llama", 90),
        Check("graph-gemma2", f"{GRAPHS}:check_gemma2", 90),
        Check("graph-gpt-oss", f"{GRAPHS}:check_gpt_oss", 90),
        Check("graph-deepseek", f"{GRAPHS}:check_deepseek", 90),
        Check("graph-long-rope", f"{GRAPHS}:check_long_rope", 90),
        Check("graph-refused", f"{GRAPHS}:check_refused", 90),
        Check("graph-pieces", f"{CORRECTNESS}.piece_graphs:check_pieces", 120),
        Check("captures", f"{TOOLS}:check_captures", 60),
        Check("engine-texts", f"{ENGINE}:check_texts", 120),
        Check("engine-waits", f"{ENGINE}:check_waits", 90),
        Check("sanitizer", f"{TOOLS}:check_sanitizer", 150),
        Check("fidelity", f"{TOOLS}:check_fidelity", 200),
        Check("device", CEILINGS, 60, is_alone=True),
        Check("receipt", f"{CORRECTNESS}.receipt:check_receipt", 90, is_alone=True),
    ),
    "speed": (
        Check("ceilings", CEILINGS, 60, is_alone=True),
        Check("attention", "bench.gpu.speed.attention:check_attention", 90, is_alone=True),
        Check(
            "attention-beside",
            "bench.gpu.speed.attention_beside:check_beside",
            90,
            is_alone=True,
        ),
        Check("model-1b", f"{MODELS}:check_1b", 150, is_alone=True),
        Check("peer-1b", f"{PEERS}:check_1b", 180, is_alone=True),
        Check("model-8b", f"{MODELS}:check_8b", 180, is_alone=True),
        Check("pieces", "bench.gpu.speed.pieces:check_pieces", 120, is_alone=True),
        Check("experts", "bench.gpu.speed.experts:check_experts", 90, is_alone=True),
        Check("swap", "bench.gpu.speed.swap:check_swap", 60, is_alone=True),
        Check("sampling", "bench.gpu.speed.sampling:check_sampling", 60, is_alone=True),
        Check("tiles", "bench.gpu.speed.tiles:check_tiles", 120, is_alone=True),
        Check("peer-8b", f"{PEERS}:check_8b", 180, is_alone=True),
    ),
}
