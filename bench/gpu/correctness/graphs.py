"""Replayed decode steps against steps that are launched, for small models of several families, each
in a process of its own; and a process that survives a model that cannot be captured."""

import gc
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from tests.models.families import VOCAB
from tests.models.graphs.device import Fault, StandInDevice, Torch
from tests.models.logits_error import logits_error
from tests.models.paging import Paging
from torch import Tensor, nn

from bench.gpu.check import Finding, Place
from bench.gpu.correctness.small_models import BLOCK_SIZE, MAX_LEN, checkpoint, load
from quire.models.config import AttentionBackendName, KVOptions
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.capture import GraphDevice, GraphRecorder
from quire.models.graphs.cuda import CUDADevice
from quire.models.graphs.decode import ReplayableBackend, record_decode
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.hf import HFModel

MAX_SEQS, REHEARSED_SEQS = 12, 4
COUNTS, REHEARSED_COUNTS = (1, 3, 5, 11), (3,)
"""Requests of a step: three of the sizes that they are padded to are larger."""
NUM_REFILLS, REHEARSED_REFILLS = 3, 2
REHEARSED_LEN = 24
"""The longest context of a rehearsal: an interpreter takes its time."""
LEAST_SEGMENT_BYTES = 20 << 20
"""The most of a segment that torch keeps for one tensor in use of a MiB or more."""
FAMILY = "llama"
RECURRENT = ("qwen3_5_text", "mamba2", "mamba")
"""Gated delta nets beside attention, and models that have states alone."""


class Subject(NamedTuple):
    """A model with K and V of its own, launched and replayed. `error` is what its logits may be
    off, and `longest` the most tokens of a context."""

    paging: Paging
    launched: HFModel
    replayed: HFModel | GraphedModel
    error: float
    longest: int


def check_llama(place: Place) -> Iterator[Finding]:
    yield from _check_family("llama", place)


def check_gemma2(place: Place) -> Iterator[Finding]:
    yield from _check_family("gemma2", place)


def check_gpt_oss(place: Place) -> Iterator[Finding]:
    yield from _check_family("gpt_oss", place)


def check_deepseek(place: Place) -> Iterator[Finding]:
    yield from _check_family("deepseek_v3", place)


def check_recurrent(place: Place) -> Iterator[Finding]:
    for family in RECURRENT[:1] if place.is_rehearsal else RECURRENT:
        yield from _check_family(family, place)


def check_long_rope(place: Place) -> Iterator[Finding]:
    yield from _check_family("phi3, long rope", place)


def check_refused(place: Place) -> Iterator[Finding]:
    """A model that cannot be captured is served launched, and leaves the process as it was: memory
    goes back, and the next model is captured."""
    refused = _subject(FAMILY, place, _ask)
    is_refused = not isinstance(refused.replayed, GraphedModel)
    yield Finding("what asks is refused", {}, None if is_refused else "it was captured")
    yield _compare(refused, COUNTS[1], seed=0, what="what asks, launched")
    yield _after_failed_capture(place)
    del refused
    yield from _check_memory(place)
    yield from _check_family(FAMILY, place)


def _ask(module: nn.Module) -> None:
    """Let the last norm of `module` ask the device for a number."""

    def ask(norm: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        output.sum().item()

    *_, last = (part for part in module.modules() if type(part).__name__.endswith("RMSNorm"))
    last.register_forward_hook(ask)


def _leave(module: nn.Module) -> None:
    pass


def _after_failed_capture(place: Place) -> Finding:
    """Let a capture fail in its midst, by a wait for the device that no check before sees."""
    stand_in = StandInDevice(Torch.NOTHING, Fault.END, frozenset({0}))
    recorder = GraphRecorder(stand_in if place.is_rehearsal else CUDADevice(place.device))

    def wait() -> None:
        torch.ones(1000, device=place.device).sum()
        if not place.is_rehearsal:
            torch.cuda.synchronize(place.device)

    try:
        recorder.capture(wait)
    except RuntimeError as error:
        recorder.forget()
        return Finding("a capture that fails", {"said": str(error).splitlines()[0]})
    return Finding("a capture that fails", {}, "it did not fail")


def _check_memory(place: Place) -> Iterator[Finding]:
    """See that memory of captures goes back, which also asks torch's allocator whether it believes
    that a capture is under way."""
    if place.device.type != "cuda":
        return
    gc.collect()
    torch.cuda.synchronize(place.device)
    torch.cuda.empty_cache()
    allocated = torch.cuda.memory_allocated(place.device)
    reserved = torch.cuda.memory_reserved(place.device)
    slack = LEAST_SEGMENT_BYTES * (1 + allocated // LEAST_SEGMENT_BYTES)
    fault = None if reserved <= allocated + slack else "what was captured did not go back"
    yield Finding("memory", {"allocated_bytes": allocated, "reserved_bytes": reserved}, fault)


def _check_family(family: str, place: Place) -> Iterator[Finding]:
    subject = _subject(family, place)
    if not isinstance(subject.replayed, GraphedModel):
        yield Finding(family, {}, "it was not captured")
        return
    for count in REHEARSED_COUNTS if place.is_rehearsal else COUNTS:
        for refill in range(REHEARSED_REFILLS if place.is_rehearsal else NUM_REFILLS):
            what = f"{family}, {count} requests, refill {refill + 1}"
            yield _compare(subject, count, seed=refill, what=what)


def _subject(family: str, place: Place, change: Callable[[nn.Module], None] = _leave) -> Subject:
    loaded = load(family, place)
    change(loaded.module)
    tables = loaded.facts.layout(KVOptions()).tables
    num_seqs = REHEARSED_SEQS if place.is_rehearsal else MAX_SEQS
    paging = Paging(num_seqs, MAX_LEN, block_size=BLOCK_SIZE, tables=tables)
    paging = paging.on(str(place.device))
    launched = loaded.attach(
        paging.num_blocks,
        BLOCK_SIZE,
        KVOptions(attention=AttentionBackendName.TRITON),
        num_states=paging.num_states,
    )
    limits = DecodeLimits(num_seqs, MAX_LEN, -(-MAX_LEN // BLOCK_SIZE), len(tables))
    assert isinstance(launched.backend, ReplayableBackend)
    recorded = record_decode(
        launched,
        launched.backend,
        Buffers(limits, place.device),
        _graph_device(place),
        lambda done, total: None,
    )
    replayed = with_recorded(launched, recorded)
    longest = REHEARSED_LEN if place.is_rehearsal else MAX_LEN - 2
    return Subject(
        paging, launched, replayed, logits_error(checkpoint(family, place), MAX_LEN), longest
    )


def _graph_device(place: Place) -> GraphDevice:
    return CUDADevice(place.device) if place.device.type == "cuda" else StandInDevice()


@torch.inference_mode()
def _compare(subject: Subject, count: int, *, seed: int, what: str) -> Finding:
    """Compute contexts of random tokens, then one decode step of them both ways."""
    generator = torch.Generator().manual_seed(100 * count + seed)
    lengths = torch.randint(1, subject.longest + 1, (count,), generator=generator).tolist()
    texts = [torch.randint(3, VOCAB, (n + 1,), generator=generator).tolist() for n in lengths]
    contexts = [(seq, 0, text[:-1]) for seq, text in enumerate(texts)]
    subject.launched.forward(subject.paging.batch(contexts))
    step = [(seq, len(text) - 1, text[-1:]) for seq, text in enumerate(texts)]
    batch, states = subject.paging.batch(step), subject.launched.states
    before = None if states is None else states.rows.clone()
    found = subject.replayed.forward(batch).double()  # before the other writes the same K and V
    if states is not None and before is not None:
        states.rows.copy_(before)
    expected = subject.launched.forward(batch).double()
    worst = _largest_share(found - expected, 2 * subject.error * expected.abs().max())
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(what, {"of_allowed_error": worst}, fault)


def _largest_share(difference: Tensor, allowed: Tensor) -> float:
    return float((difference.abs() / allowed).nan_to_num(torch.inf).max())
