"""The terms of the acceptance checks: where one runs, what it finds, and how it is listed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

Figure: TypeAlias = float | int | str | None


class Place(NamedTuple):
    """A place that a check runs in. `folder` is scratch that all checks of a run share, so that a
    checkpoint is made once. A rehearsal is small, on a CPU, with Triton's interpreter; its figures
    mean nothing, and stand-ins take the place of what only a GPU has."""

    device: torch.device
    is_rehearsal: bool
    folder: Path


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing looked at, the figures that it gave, units in their names, and what is wrong with it,
    if anything is: a speed is never wrong."""

    what: str
    figures: Mapping[str, Figure]
    fault: str | None = None


Run: TypeAlias = Callable[[Place], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of the acceptance: it runs in a process of its own, which is ended after `limit_s`.

    run: module and function, imported in that process only.
    about: what it holds to, or measures.
    takes_s: the seconds that it takes on a GPU, a guess until a record tells: by it a run says
        beforehand what it will leave out.
    is_alone: whether nothing else may use the device meanwhile.
    """

    name: str
    run: str
    about: str
    limit_s: float
    takes_s: float
    is_alone: bool = False


def load(run: str) -> Run:
    """Return the function that "module:function" names."""
    module, function = run.split(":")
    found: Run = getattr(import_module(module), function)
    return found
