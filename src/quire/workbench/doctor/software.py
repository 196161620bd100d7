"""Looks at what is installed: versions, kernels, extras."""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from quire.engine.config import ModelConfig
from quire.extras import how_to_install
from quire.version import __version__
from quire.workbench.doctor.finding import Finding, fail, ok, warn

LEAST_PYTHON = (3, 11)
SHOWN_PACKAGES = ("torch", "transformers", "tokenizers", "huggingface-hub")
EXTRAS = {
    "otel": ("opentelemetry", "traces"),
    "plot": ("matplotlib", "pictures of `quire bench` and `quire sim`"),
    "terminal": ("prompt_toolkit", "`quire chat` and `quire top`"),
}
"""Each extra with a package that it brings, and its purpose."""


def software_findings() -> Iterator[Finding]:
    """Yield what is found of Python and its packages."""
    python = f"{platform.python_version()} ({platform.machine()}, {sys.platform})"
    if sys.version_info < LEAST_PYTHON:
        yield fail("Python", python, "Quire needs Python 3.11 or newer")
    else:
        yield ok("Python", python)
    yield ok("Quire", __version__)
    wrong = list(_wrong_versions())
    yield from wrong
    if not wrong:
        shown = ", ".join(f"{name} {version(name)}" for name in SHOWN_PACKAGES)
        yield ok("packages", f"all in the ranges that Quire is tested in: {shown}")


def _wrong_versions() -> Iterator[Finding]:
    """Yield the packages that are missing or out of their ranges."""
    from transformers.utils.versions import require_version  # slow to import, and may be missing

    try:
        wanted = requires("quire") or []
    except PackageNotFoundError:
        yield warn("packages", "their ranges are unknown: Quire is not installed", "install Quire")
        return
    for requirement in wanted:
        needed, _, condition = requirement.partition(";")
        if "extra" in condition:
            continue
        try:
            require_version(needed.strip())
        except ImportError as error:  # of a version that is wrong too
            said = " ".join(str(error).split())
            yield fail("packages", said, f"pip install {needed.strip()!r}")


def kernel_findings(config: ModelConfig) -> Iterator[Finding]:
    """Yield which kernels would run on the CPU, and why no others."""
    from quire.engine.startup.machine_facts import kernel_facts, torch_facts
    from quire.models.native.library import NO_LIBRARY

    torch = torch_facts()
    built = f"for CUDA {torch.cuda}" if torch.cuda else "for CPUs"
    yield ok("torch", f"{torch.version}, built {built}, {torch.num_threads} threads")
    facts = kernel_facts(config)
    if facts is None:
        yield fail("C++ kernels", "they do not load, so PyTorch's are used", NO_LIBRARY)
        return
    best = facts.isas[-1]
    which = "the best of this CPU" if facts.isa == best else f"this CPU has {best} too"
    yield ok("instruction set", f"{facts.isa}, {which}")
    if facts.num_threads < torch.num_threads:
        yield warn(
            "C++ kernels",
            "they run on one thread: the OpenMP of torch was not found",
            "install torch from PyPI or pytorch.org",
        )
    linears = ", ".join(facts.linears) or "PyTorch's"
    yield ok("linear layers", linears)
    yield ok("other kernels", "; ".join(("paged attention", *facts.parts)))


def extra_findings() -> Iterator[Finding]:
    """Yield which optional parts are installed."""
    for extra, (package, purpose) in EXTRAS.items():
        if find_spec(package) is not None:
            yield ok(extra, f"installed, for {purpose}")
        else:
            yield ok(extra, f"not installed; {purpose} would need it: {how_to_install(extra)}")
