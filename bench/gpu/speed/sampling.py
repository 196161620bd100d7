"""The sampler alone: top-p and top-k beside greedy, over logits that no cache holds, and top-p by
torch's operations."""

import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.check import Finding, Place
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.decoding import GREEDY
from bench.gpu.speed.floor import Work, judge
from bench.gpu.speed.models import SAMPLINGS
from bench.gpu.speed.timing import (
    REPLAYS,
    Call,
    Timing,
    cache_bytes,
    num_buffers,
    time_captured,
    time_launched,
)
from quire.engine.sampling.build_sampler import fused_sampler
from quire.engine.sampling.logits_processor import ProcessorContext
from quire.engine.sampling.sampler import Sampler
from quire.engine.sampling.sampling_plan import build_plan
from quire.engine.sampling.sampling_state import SamplingState, build_sampling_state
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.engine.sampling.triton.fused_sampler import FusedSampler
from quire.scheduler.request import Sampling, Stopping

NUM_ROWS, VOCAB = 128, 128256
REHEARSED_ROWS, REHEARSED_VOCAB = 1, 150
NUM_LIKELY, LIKELY = 40, 12.0
"""So many tokens of each row stand out from the others, by up to so much."""
NUM_CALLS = 20
KINDS = {
    "greedy": GREEDY,
    **SAMPLINGS,
    "all of it": Sampling(temperature=1.5, top_k=20_000, top_p=0.95, min_p=1e-4),
}
REHEARSED_KINDS = ("greedy",)
AIM_MS = 0.5
"""The kernel is to take less for the full size."""


@torch.inference_mode()
def check_sampling(place: Place) -> Iterator[Finding]:
    """Time each kind of sampling beside one read of the logits, and the kernel by itself. `host_ms`
    is how long the host is busy with launching it."""
    num_rows, vocab = (REHEARSED_ROWS, REHEARSED_VOCAB) if place.is_rehearsal else (NUM_ROWS, VOCAB)
    rates = ceilings(place).rates
    logits = build_logits(num_rows, vocab, place.device)
    fused, plain = fused_sampler(vocab, place.device), TorchSampler(vocab, place.device)
    names = REHEARSED_KINDS if place.is_rehearsal else KINDS
    cases = [(name, fused, KINDS[name]) for name in names]
    for name, sampler, sampling in (*cases, ("top_p 0.9 by torch", plain, SAMPLINGS["top_p 0.9"])):
        rows = [_row(index, sampling) for index in range(num_rows)]
        call = _sampling_all(sampler, logits, rows)
        num_repeats = 1 if place.is_rehearsal else REPLAYS
        timing = time_launched(place.device, call, num_repeats).over(len(logits))
        host_s = _host_s(call, place.device) / len(logits)
        what = f"sampling, {name}, {num_rows} x {vocab}"
        yield judge(what, timing, Work(logits[0].nbytes), rates, host_ms=1e3 * host_s)
    timing = _time_kernel(logits, place)
    what = f"sampling, top_p 0.9, {num_rows} x {vocab}, the kernel"
    yield judge(what, timing, Work(logits[0].nbytes), rates, aim_ms=AIM_MS)


def _time_kernel(logits: list[Tensor], place: Place) -> Timing:
    num_rows, vocab = logits[0].shape
    rows = [_row(index, SAMPLINGS["top_p 0.9"]) for index in range(num_rows)]
    plan = build_plan(rows, vocab, num_rows)
    on_device = plan.on_device([each.to(place.device) for each in plan.tensors()])
    kernel = FusedSampler(vocab, place.device)
    calls = [partial(kernel.sample, each, plan, on_device) for each in logits]
    return time_captured(place.device, calls)


def build_logits(num_rows: int, vocab: int, device: torch.device) -> list[Tensor]:
    """Return bfloat16 logits of peaked distributions, several of them, to be taken in turn."""
    num_bytes = num_rows * vocab * torch.bfloat16.itemsize
    count = max(num_buffers(num_bytes, cache_bytes(device)), NUM_CALLS)
    made = []
    for _ in range(count if device.type == "cuda" else 2):
        logits = torch.randn(num_rows, vocab, device=device) * 2
        likely = torch.randint(vocab, (num_rows, NUM_LIKELY), device=device)
        more = torch.rand(num_rows, NUM_LIKELY, device=device) * LIKELY
        made.append(logits.scatter_add_(1, likely, more).bfloat16())
    return made


def _sampling_all(sampler: Sampler, logits: list[Tensor], rows: list[SamplingState]) -> Call:
    return lambda: [sampler.sample(each, rows) for each in logits]


def _row(index: int, sampling: Sampling) -> SamplingState:
    """Return the state of a request with a prompt of some tokens."""
    token_ids = [index, 1, 2]
    return build_sampling_state(ProcessorContext(sampling, Stopping(1), token_ids, len(token_ids)))


def _host_s(call: Call, device: torch.device) -> float:
    """Return the seconds until the host goes on, with nothing waiting on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
