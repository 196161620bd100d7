"""Checks by tools that run programs of their own: NVIDIA's compute-sanitizer, and pytest over the
suites of fidelity."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shutil import which

from bench.gpu.check import Finding, Place

SANITIZER, SANITIZED = "compute-sanitizer", "bench.gpu.correctness.sanitized"
TAIL_CHARACTERS = 1500
FIDELITY = (
    *("llama", "gemma2", "gpt_oss", "llama4_text", "deepseek_v3", "qwen3_moe", "mixtral", "phi3"),
)
HALF = ("llama", "gemma2", "deepseek_v3")
SUITES = ("tests/engine/test_fidelity.py", "tests/models/test_fidelity.py")


def check_sanitizer(place: Place) -> Iterator[Finding]:
    """A step of attention reads and writes nothing that is not its own, by memcheck."""
    program = [
        sys.executable,
        "-m",
        "bench.gpu.correctness.sanitized",
        "--device",
        str(place.device),
    ]
    if place.is_rehearsal:
        yield _ran("attention, without the sanitizer", program)
        return
    if which(SANITIZER) is None:
        yield Finding("attention", {}, f"{SANITIZER} is not on this machine")
        return
    command = [SANITIZER, "--tool", "memcheck", "--error-exitcode", "9", *program]
    yield _ran("attention, memcheck", command)


def check_fidelity(place: Place) -> Iterator[Finding]:
    """Small models of a few families say what transformers says: every token in float32, and in
    bfloat16 no worse than transformers in bfloat16."""
    families = FIDELITY[:1] if place.is_rehearsal else FIDELITY
    suites = SUITES[:1] if place.is_rehearsal else SUITES
    exact = " or ".join(f"generate[{family}]" for family in families)
    yield _suite("float32", suites, f"tokens_are_those_of and ({exact})", place)
    half = " or ".join(f"ordinary_bfloat16[{family}]" for family in HALF)
    if not place.is_rehearsal:
        yield _suite("bfloat16", SUITES[1:], half, place)


def check_captures(place: Place) -> Iterator[Finding]:
    """Captures that fail, wait or find no memory leave the process, its stream, its random numbers
    and its memory as they were; in rehearsals one test on a stand-in."""
    if place.is_rehearsal:
        yield _suite("a stand-in", ("tests/models/graphs/test_capture.py",), "progress", place)
    else:
        yield _suite("captures", ("tests/models/graphs/test_cuda.py",), "test", place)


def _suite(what: str, suites: Sequence[str], chosen: str, place: Place) -> Finding:
    options = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-k", chosen]
    command = [sys.executable, "-m", "pytest", *options, *suites]
    found = _ran(what, command, {"FIDELITY_DEVICE": str(place.device)})
    is_empty = found.fault is None and " passed" not in str(found.figures["said"])
    return replace(found, fault="no test ran") if is_empty else found


def _ran(what: str, command: Sequence[str], more: dict[str, str] | None = None) -> Finding:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(more or {})}
    )
    said = (done.stdout + done.stderr).strip()
    last = said.splitlines()[-1] if said else ""
    fault = None if done.returncode == 0 else said[-TAIL_CHARACTERS:]
    return Finding(what, {"exit_status": done.returncode, "said": last}, fault)
