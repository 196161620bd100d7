"""The speed of recurrent layers between their projections: decode steps beside the time to read and
write their states, and prompts, whose tokens are computed one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tests.models.recurrent.cuts import make_pieces
from tests.models.recurrent.random_operations import (
    RandomOperation,
    convolution,
    delta_net,
    selective_scan,
    state_space,
)
from torch import Tensor

from bench.gpu.check import Finding, Place
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.floor import Rates, Work, judge
from bench.gpu.speed.timing import Call, cache_bytes, num_buffers, time_captured
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.triton.kernels import TritonRecurrentKernels

LAYERS = {
    "delta net of 16 heads, 128 x 128": delta_net(16, 16, 128, 128, width=4, is_wide=True),
    "Mamba-2 of 48 heads, 64 x 128": state_space(1, 48, 64, 128, has_skip=True),
    "Mamba, 8192 x 16": selective_scan(8192, 16, has_skip=True),
    "short convolution, 2048 x 3": convolution(2048, 3, has_bias=False, is_activated=False),
}
"""As Qwen3.5 0.8B, Granite 4 H, Falcon Mamba and LFM2 have them, about; the scans without their
convolutions."""
REHEARSED = {"Mamba-2 of 2 heads, 4 x 8": state_space(1, 2, 4, 8, has_skip=True)}
BATCHES, REHEARSED_BATCHES = (1, 32, 256), (2,)
PROMPTS, REHEARSED_PROMPTS = ((1, 1024), (8, 1024)), ((2, 3),)
"""Numbers of prompts in a step, and the tokens of each."""
MOST_BYTES = 16 << 30
"""The most bytes of states that calls take turns over."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of `num_seqs` sequences of `length` tokens each, over states that are in no cache."""

    operation: RandomOperation
    num_seqs: int
    length: int
    place: Place

    @property
    def state_bytes(self) -> int:
        """The bytes of the states of a step."""
        one = torch.Size(self.operation.state_shape).numel()
        return self.num_seqs * one * torch.float32.itemsize

    def calls(self) -> tuple[list[Call], int]:
        """Return steps that take turns over states, and the bytes of the rows of one."""
        device, num_seqs = self.place.device, self.num_seqs
        wanted = num_buffers(self.state_bytes, cache_bytes(device))
        number = max(1, min(wanted, MOST_BYTES // self.state_bytes))
        generator = torch.Generator().manual_seed(0)
        dtype = torch.float32 if self.place.is_rehearsal else torch.bfloat16
        drawn = self.operation.draw(num_seqs * self.length, dtype, generator)
        inputs = tuple(each.to(device) for each in drawn)
        shape = (1 + number * num_seqs, *self.operation.state_shape)
        states = torch.zeros(shape, device=device)
        step: Callable[[Pieces], Tensor] = partial(
            self.operation.apply, TritonRecurrentKernels(), inputs, states
        )
        firsts = range(1, len(states), num_seqs)
        calls: list[Call] = [partial(step, self._pieces(first)) for first in firsts]
        return calls, sum(each.nbytes for each in inputs)

    def _pieces(self, first: int) -> Pieces:
        ids = range(first, first + self.num_seqs)
        made = make_pieces([[(self.length, each, each)] for each in ids])
        parts = (made.starts, made.reads, made.writes, made.sequences)
        return Pieces(*(each.to(self.place.device) for each in parts))


@torch.inference_mode()
def check_recurrent(place: Place) -> Iterator[Finding]:
    """Time decode steps and prompts of each kind of layer."""
    rates = ceilings(place).rates
    for name, operation in (REHEARSED if place.is_rehearsal else LAYERS).items():
        for batch in REHEARSED_BATCHES if place.is_rehearsal else BATCHES:
            yield _decode(name, Steps(operation, batch, 1, place), rates)
        for num_seqs, length in REHEARSED_PROMPTS if place.is_rehearsal else PROMPTS:
            yield _prefill(name, Steps(operation, num_seqs, length, place))


def _decode(name: str, steps: Steps, rates: Rates) -> Finding:
    calls, row_bytes = steps.calls()
    timing = time_captured(steps.place.device, calls)
    work = Work(2 * steps.state_bytes + row_bytes)
    return judge(f"{name}, decode step of {steps.num_seqs}", timing, work, rates)


def _prefill(name: str, steps: Steps) -> Finding:
    calls, _ = steps.calls()
    timing = time_captured(steps.place.device, calls[:2])
    num_tokens = steps.num_seqs * steps.length
    figures = {
        "ms": 1e3 * timing.median_s,
        "tokens_s": num_tokens / timing.median_s,
        "us_per_token": 1e6 * timing.median_s / steps.length,
    }
    return Finding(f"{name}, {steps.num_seqs} prompts of {steps.length}", figures)
