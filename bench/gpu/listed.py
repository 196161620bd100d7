"""All checks of the acceptance, by stage, those first that matter most."""

from bench.gpu.check import Check

STAGES: dict[str, tuple[Check, ...]] = {
    "correctness": (
        Check("attention", "bench.gpu.attention_checks:check_attention", 150),
        Check("ceilings", "bench.gpu.ceilings:check_ceilings", 60, is_alone=True),
    ),
    "speed": (),
}
