"""Looks at a model that would be served here: whether it would, by which kernels, at what cost, and
why not. Its weights are not read."""

from collections.abc import Iterator
from pathlib import Path

from quire.engine.config import EngineConfig
from quire.workbench.doctor.finding import Finding, fail, ok, warn

MIB = 2**20
OTHER_CHECKPOINT = "take another checkpoint of it: docs/models.md says what is served"


def model_findings(name: str, config: EngineConfig) -> Iterator[Finding]:
    """Yield what is found of the model that `config` would serve, under the `name` it was given."""
    from quire.models.config import CheckpointError, UnsupportedModel
    from quire.models.loading.checkpoint import ModelSource, check_local, locate_config
    from quire.models.loading.checkpoint_kind import is_encoder

    source = ModelSource(config.model.model, config.model.revision, config.model.trust_remote_code)
    try:
        folder = check_local(source) or locate_config(source)
        if is_encoder(folder):
            yield ok("model", f"{name} is an encoder: it gives embeddings or scores, no text")
            return
        yield from _format_findings(folder)
        yield from _code_findings(folder)
        yield from _plan_findings(name, config)
    except (CheckpointError, UnsupportedModel) as error:
        yield fail("model", str(error), OTHER_CHECKPOINT)


def _format_findings(folder: Path) -> Iterator[Finding]:
    """Yield how weights were quantised before they were published, where they were. Raises
    CheckpointError for those that are not read."""
    from quire.models.loading.published.description import describe_published
    from quire.models.loading.weight_files import read_headers

    quantised = describe_published(folder, read_headers(folder))
    if quantised is not None:
        yield ok("format", f"weights are quantised: {quantised}")


def _code_findings(folder: Path) -> Iterator[Finding]:
    """Yield whether the code computes what it should, and how much of it the kernels take at
    once."""

    from quire.models.loading.loader import check_code

    found = check_code(folder)
    if found.is_checked:
        yield ok(
            "code",
            "a small copy with random weights says the same alone, beside another request, and by "
            "transformers' own attention",
        )
    else:
        yield warn(
            "code",
            "no small copy can be made: the weights alone will tell, once they are loaded",
            "start it: it is refused with the reason if it would answer wrongly",
        )
    if found.is_plain_decoder:
        yield ok("layers", "the kernels take all of them in one call")
    else:
        yield ok(
            "layers",
            "of other parts than one call takes: the kernels take norms, MLPs and attention one by "
            "one, with Python between them",
        )


def _plan_findings(name: str, config: EngineConfig) -> Iterator[Finding]:
    """Yield what the model would take here, and how fast one stream of it would be."""
    from quire.workbench.planning.plan import PlanRequest, build_plan

    plan = build_plan(PlanRequest(name, "this"), config)
    facts = plan.facts
    if facts is None:
        advice = "take a machine with more memory, or a smaller model"
        if plan.fitting_len:
            advice = f"pass --max-model-len {plan.fitting_len}"
        yield fail("memory", f"it would not start: {plan.why_not}", advice)
        return
    weights = "as they are" if facts.quantization == "none" else f"in {facts.quantization}"
    yield ok("dtype", f"computes in {facts.dtype}, weights {weights}")
    yield ok("attention of the model", facts.attention)
    yield ok(
        "memory",
        f"weights take {plan.weight_bytes / MIB:,.0f} MiB, K and V {plan.token_bytes:,} bytes a "
        f"token, and {facts.memory.kv_tokens:,} tokens fit",
        {"weight_bytes": plan.weight_bytes, "kv_token_bytes": plan.token_bytes},
    )
    gb_s = plan.device.bytes_s / 1e9
    step_ms = plan.weight_bytes / plan.device.bytes_s * 1e3
    yield ok(
        "speed",
        f"a step reads all weights, {step_ms:.1f} ms at {gb_s:.1f} GB/s: one stream has at most "
        f"{1e3 / step_ms:,.0f} tokens/s",
        {"floor_ms": step_ms},
    )
