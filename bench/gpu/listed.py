"""All checks of the acceptance, by stage, those first that matter most."""

from bench.gpu.check import Check

ATTENTION = "bench.gpu.attention_checks"
MODELS = "bench.gpu.model_speed"
STAGES: dict[str, tuple[Check, ...]] = {
    "correctness": (
        Check("attention-bfloat16", f"{ATTENTION}:check_bfloat16", 150),
        Check("attention-float16", f"{ATTENTION}:check_float16", 150),
        Check("attention-float32", f"{ATTENTION}:check_float32", 150),
        Check("attention-fp8", f"{ATTENTION}:check_fp8", 150),
        Check("attention-int8", f"{ATTENTION}:check_int8", 150),
    ),
    "speed": (
        Check("ceilings", "bench.gpu.ceilings:check_ceilings", 60, is_alone=True),
        Check("attention", "bench.gpu.attention_speed:check_attention", 90, is_alone=True),
        Check("model-1b", f"{MODELS}:check_1b", 150, is_alone=True),
        Check("model-8b", f"{MODELS}:check_8b", 180, is_alone=True),
        Check("sampling", "bench.gpu.sampling_speed:check_sampling", 60, is_alone=True),
    ),
}
