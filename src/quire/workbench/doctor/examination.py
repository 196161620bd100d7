"""Examines a machine section by section. What cannot be examined is a finding, not an error: this
is for machines on which something is wrong."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from quire.engine.config import EngineConfig
from quire.workbench.doctor.finding import Finding, Level, Section, fail
from quire.workbench.doctor.hardware import cpu_findings, gpu_findings, memory_findings
from quire.workbench.doctor.model import model_findings
from quire.workbench.doctor.reach import hub_findings, port_finding
from quire.workbench.doctor.software import extra_findings, kernel_findings, software_findings
from quire.workbench.doctor.trial import (
    decode_findings,
    fidelity_findings,
    load_finding,
    speed_findings,
)

Look = Callable[[], Iterable[Finding]]


class ExaminedServer(NamedTuple):
    """The server that would run here: its engine's options, its address, and what was found of its
    options already. `model_name` is the model that was asked about, None for none."""

    engine: EngineConfig
    host: str
    port: int
    options: tuple[Finding, ...] = ()
    model_name: str | None = None


def examine(subject: ExaminedServer, *, tries: bool) -> Iterator[Section]:
    """Yield each section once it is known; the last takes ten seconds, and is left out unless
    `tries`."""
    looks: Mapping[str, tuple[Look, ...]] = {
        "Software": (software_findings, extra_findings),
        "Kernels": (lambda: kernel_findings(subject.engine.model),),
        "Machine": (cpu_findings, memory_findings, gpu_findings),
        "Hub": (hub_findings,),
        "Server": (
            lambda: subject.options,
            lambda: (port_finding(subject.host, subject.port),),
        ),
    }
    if subject.model_name is not None:
        look = partial(model_findings, subject.model_name, subject.engine)
        looks = {"Model": (look,), **looks}
    num_cpus = len(os.sched_getaffinity(0))
    trials: tuple[Look, ...] = (
        lambda: (load_finding(os.getloadavg()[0], num_cpus),),
        lambda: speed_findings(subject.engine.model),
        decode_findings,
        fidelity_findings,
    )
    if tries:
        looks = {**looks, "Self-test": trials}
    for name, each in looks.items():
        yield Section(name, tuple(finding for look in each for finding in _found(name, look)))


def _found(section: str, look: Look) -> Iterator[Finding]:
    try:
        yield from look()
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        yield fail(section, f"cannot be examined: {said}", "put this right first")


def has_failed(sections: Iterable[Section]) -> bool:
    """Return whether anything fails."""
    return any(each.level is Level.FAIL for section in sections for each in section.findings)
