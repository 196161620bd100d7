"""Tries the machine: how fast it reads and computes, how near a small model comes to that, and
whether it says what it should. About ten seconds."""

from collections.abc import Iterator

from quire.engine.config import ModelConfig
from quire.workbench.doctor.finding import Finding, fail, ok, warn

BUSY = 0.75
"""A machine is at rest up to this share of its CPUs in use."""


def load_finding(load: float, num_cpus: int) -> Finding:
    """Return whether the machine is at rest, by the mean number of processes that wanted a CPU in
    the last minute: on one that is not, figures tell less."""
    text = f"{load:.1f} processes wanted one of the {num_cpus} CPUs in the last minute"
    if load <= BUSY * num_cpus:
        return ok("load", text)
    return warn("load", text, "repeat it at rest: the machine can do more than the figures below")


def speed_findings(config: ModelConfig) -> Iterator[Finding]:
    """Yield the bandwidth and the products of the device that would serve."""
    from quire.engine.startup.device_speed import measure_machine

    found = measure_machine(config)
    gb_s, gflop_s = found.speed.bytes_s / 1e9, found.speed.flops_s / 1e9
    yield ok(
        "bandwidth",
        f"{gb_s:.1f} GB/s of weights read on this {found.device.upper()}: a decode step of a model "
        f"of 1 GB takes at least {1e3 / gb_s:.0f} ms",
        {"read_gb_s": gb_s},
    )
    yield ok("products", f"{gflop_s:.0f} GFLOP/s in {found.dtype}", {"gflop_s": gflop_s})


def decode_findings() -> Iterator[Finding]:
    """Yield how near decode steps of the bundled model come to the floor of its weights."""
    from quire.engine.startup.self_test import time_decoding

    found = time_decoding()
    step_ms, floor_ms = 1e3 * found.step_s, 1e3 * found.floor_s
    figures = {"step_ms": step_ms, "floor_ms": floor_ms, "tokens_s": 1 / found.step_s}
    text = (
        f"{1 / found.step_s:.0f} tokens/s of one stream of the bundled model in {found.dtype}: "
        f"{step_ms:.2f} ms a step, of which reading its weights takes {floor_ms:.2f}"
    )
    yield ok("decode", text, figures)
    yield ok("attention", found.attention)


def fidelity_findings() -> Iterator[Finding]:
    """Yield whether the bundled model says what transformers says."""
    from quire.engine.startup.self_test import compare_with_transformers

    found = compare_with_transformers()
    figures = {"num_tokens": found.num_tokens, "num_equal": found.num_equal}
    said = f"{found.num_equal} of {found.num_tokens} tokens of the bundled model in float32"
    if found.is_exact:
        yield ok("fidelity", f"{said}, all, are those of transformers", figures)
    else:
        yield fail(
            "fidelity",
            f"{said} are those of transformers",
            "a kernel computes wrongly here: try --disable-optimizations with each instruction "
            "set, and report it",
        )
