"""The plans of steps: of launched ones, made anew for each when a layer first needs them, and of
decode steps that are captured and replayed, made before each replay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.models.attention.flashinfer.api import Wrapper
from quire.models.attention.flashinfer.kind import Kind
from quire.models.attention.flashinfer.pages import Pages, Part, find_pages, padded, parts_of
from quire.models.attention.flashinfer.wrappers import (
    PLAN_BYTES,
    Chunks,
    ReplayMemory,
    Singles,
    Target,
    build_chunks,
    build_replayed,
    build_singles,
)
from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch


class Run(NamedTuple):
    """Rows of a step, and the wrapper that attends with them."""

    rows: slice | Tensor
    wrapper: Wrapper


class StepPlans(Protocol):
    """The plans of one step."""

    def runs(self, kind: Kind) -> Iterator[Run]:
        """Yield what computes layers of a kind, planned."""
        ...


@dataclass(frozen=True, slots=True)
class Planner:
    """The wrappers of one store, kept from step to step.

    replayed: by kind and number of sequences.
    """

    target: Target
    chunks: dict[Kind, Chunks] = field(default_factory=dict)
    singles: dict[Kind, Singles] = field(default_factory=dict)
    replayed: dict[tuple[Kind, int], Singles] = field(default_factory=dict)
    ids: dict[int, Tensor] = field(default_factory=dict)
    plans: dict[Kind, Tensor] = field(default_factory=dict)

    def plan(self, kind: Kind, part: Part, pages: Pages) -> Wrapper:
        """Return a wrapper for a part of a launched step, planned."""
        if part.is_single:
            if kind not in self.singles:
                self.singles[kind] = build_singles(self.target, kind)
            self.singles[kind].plan(kind, pages)
            return self.singles[kind].wrapper
        if kind not in self.chunks:
            self.chunks[kind] = build_chunks(self.target)
        self.chunks[kind].plan(kind, pages, _starts(part.sizes))
        return self.chunks[kind].wrapper

    def for_replay(self, kind: Kind, inputs: StepInputs) -> Wrapper:
        """Return the wrapper of a step that is captured. It is made and planned when it is first
        asked for, which a capture is not."""
        num_seqs = len(inputs.context_lens)
        if (kind, num_seqs) not in self.replayed:
            memory = self._replay_memory(kind, inputs.block_tables[kind.group])
            singles = build_replayed(self.target, kind, num_seqs, memory)
            singles.plan(kind, padded(_no_pages(self.target.device), num_seqs))
            self.replayed[kind, num_seqs] = singles
        return self.replayed[kind, num_seqs].wrapper

    def plan_replay(self, num_seqs: int, batch: Batch) -> None:
        """Plan the captured step of so many sequences anew, for those of a batch."""
        (part,) = parts_of(batch)
        for (kind, size), singles in self.replayed.items():
            if size == num_seqs:
                table = batch.block_tables[kind.group]
                pages = find_pages(table, part, kind.pattern, self.target.block_size)
                singles.plan(kind, padded(pages, num_seqs))

    def _replay_memory(self, kind: Kind, table: Tensor) -> ReplayMemory:
        """Return memory that a step with such a table shares with smaller ones made later."""
        if kind.group not in self.ids or len(self.ids[kind.group]) < table.numel():
            self.ids[kind.group] = table.new_zeros(table.numel())
        if kind not in self.plans:
            self.plans[kind] = table.new_empty(PLAN_BYTES, dtype=torch.uint8)
        return ReplayMemory(self.ids[kind.group], self.plans[kind])


@dataclass(frozen=True, slots=True)
class LaunchedPlans:
    """The plans of a step that is launched operation by operation."""

    planner: Planner
    batch: Batch
    parts: tuple[Part, ...]
    planned: dict[Kind, list[Run]] = field(default_factory=dict)

    def runs(self, kind: Kind) -> Iterator[Run]:
        if kind not in self.planned:
            self.planned[kind] = [self._plan(kind, part) for part in self.parts]
        yield from self.planned[kind]

    def _plan(self, kind: Kind, part: Part) -> Run:
        table, block_size = self.batch.block_tables[kind.group], self.planner.target.block_size
        pages = find_pages(table, part, kind.pattern, block_size)
        return Run(part.rows, self.planner.plan(kind, part, pages))


@dataclass(frozen=True, slots=True)
class ReplayedPlans:
    """The plans of a step of chunks of one token that is captured; `inputs` are its tensors."""

    planner: Planner
    inputs: StepInputs

    def runs(self, kind: Kind) -> Iterator[Run]:
        yield Run(slice(None), self.planner.for_replay(kind, self.inputs))


def launched_plans(planner: Planner, batch: Batch) -> LaunchedPlans:
    return LaunchedPlans(planner, batch, parts_of(batch))


def _starts(sizes: Sequence[int]) -> Tensor:
    return torch.tensor(list(accumulate(sizes, initial=0)), dtype=torch.int32)


def _no_pages(device: torch.device) -> Pages:
    host = torch.zeros(1, dtype=torch.int32)
    return Pages(host, torch.zeros(0, dtype=torch.int32, device=device), host[:0])
