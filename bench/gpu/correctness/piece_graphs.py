"""Steps with prefill in captured pieces against steps that are launched, for small models of
several families: logits, keys and values of random mixes of chunks and single tokens. Blocks begin
as NaN, and what is stored beyond a step's own tokens is seen."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from tests.models.families import VOCAB
from tests.models.graphs.device import StandInDevice
from tests.models.logits_error import logits_error
from tests.models.paging import Chunk, Paging
from torch import Tensor, nn

from bench.gpu.check import Figure, Finding, Place
from bench.gpu.correctness.small_models import BLOCK_SIZE, MAX_LEN, checkpoint, load
from quire.models.batch import Batch
from quire.models.config import AttentionBackendName, KVOptions
from quire.models.graphs.cuda import CUDADevice
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.graphs.pieces import PieceBuffers, PieceLimits, record_pieces
from quire.models.hf import HFModel
from quire.models.kv.kv_store import KVStore

FAMILIES, REHEARSED_FAMILIES = ("llama", "gemma2", "gpt_oss", "deepseek_v3"), ("llama",)
REFUSED = "llama"


class Scale(NamedTuple):
    """The most requests, the longest text, the most tokens of a captured step, and how often all
    texts are computed from their beginnings."""

    num_seqs: int
    longest: int
    max_tokens: int
    num_rounds: int


SCALE, REHEARSED_SCALE = Scale(9, MAX_LEN, 300, 3), Scale(3, 20, 24, 1)


class Subject(NamedTuple):
    """A model with keys and values of its own, launched and in pieces. `error` is what its numbers
    may be off, in parts of the largest."""

    paging: Paging
    launched: HFModel
    replayed: HFModel | GraphedModel
    stores: tuple[KVStore, KVStore]
    error: float
    why_not: str


def check_pieces(place: Place) -> Iterator[Finding]:
    scale = REHEARSED_SCALE if place.is_rehearsal else SCALE
    for family in REHEARSED_FAMILIES if place.is_rehearsal else FAMILIES:
        subject = _subject(family, place, scale)
        if subject.why_not:
            yield Finding(family, {}, f"it was not captured: {subject.why_not}")
            continue
        for seed in range(scale.num_rounds):
            yield from _round(family, subject, scale, seed)
    yield _refused(place, scale)


def _refused(place: Place, scale: Scale) -> Finding:
    """See that a model which asks the device in the midst of its layers is launched as ever."""
    why = _subject(REFUSED, place, scale, _ask).why_not
    return Finding("what asks is refused", {"said": why}, None if why else "it was captured")


def _ask(module: nn.Module) -> None:
    """Let all norms of `module` ask the device for a number."""

    def ask(norm: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        output.sum().item()

    for part in module.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.register_forward_hook(ask)


def _leave(module: nn.Module) -> None:
    pass


def _subject(
    family: str, place: Place, scale: Scale, change: Callable[[nn.Module], None] = _leave
) -> Subject:
    loaded = load(family, place)
    change(loaded.module)
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(scale.num_seqs, MAX_LEN, block_size=BLOCK_SIZE, tables=tables)
    options = KVOptions(attention=AttentionBackendName.TRITON)
    launched, model = (loaded.attach(paging.num_blocks, BLOCK_SIZE, options) for _ in range(2))
    limits = PieceLimits(scale.max_tokens, scale.num_seqs)
    recorded = record_pieces(
        model,
        PieceBuffers(limits, place.device),
        CUDADevice(place.device) if place.device.type == "cuda" else StandInDevice(),
        lambda done, total: None,
    )
    return Subject(
        paging.on(str(place.device)),
        launched,
        with_recorded(model, recorded),
        (launched.store, model.store),
        logits_error(checkpoint(family, place), MAX_LEN),
        recorded.why_not,
    )


@torch.inference_mode()
def _round(family: str, subject: Subject, scale: Scale, seed: int) -> Iterator[Finding]:
    """Compute texts of random lengths in random chunks until all are done."""
    for store in subject.stores:
        for elements in _elements(store):
            elements.fill_(torch.nan)
    for number, chunks in enumerate(_steps(random.Random(seed), scale)):
        what = f"{family}, round {seed + 1}, step {number + 1}"
        yield _compare(subject, subject.paging.batch(chunks), what)


def _steps(rng: random.Random, scale: Scale) -> Iterator[Sequence[Chunk]]:
    lengths = [rng.randint(1, scale.longest) for _ in range(scale.num_seqs)]
    texts = [[rng.randrange(3, VOCAB) for _ in range(length)] for length in lengths]
    done = [0] * len(texts)
    while unfinished := [seq for seq, text in enumerate(texts) if done[seq] < len(text)]:
        chunks: list[Chunk] = []
        for seq in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            longest = rng.choice((1, 1, 9, scale.longest))
            tokens = texts[seq][done[seq] : done[seq] + rng.randint(1, longest)]
            chunks.append((seq, done[seq], tokens))
            done[seq] += len(tokens)
        yield chunks


def _compare(subject: Subject, batch: Batch, what: str) -> Finding:
    found = subject.replayed.forward(batch).double()
    expected = subject.launched.forward(batch).double()
    worst = _share(found, expected, subject.error)
    is_beyond = False
    for launched, replayed in zip(*map(_elements, subject.stores), strict=True):
        written = ~launched.isnan()
        is_beyond |= bool((written != ~replayed.isnan()).any())
        kept = replayed[written].double(), launched[written].double()
        worst = max(worst, _share(*kept, subject.error))
    launch = subject.replayed.launch if isinstance(subject.replayed, GraphedModel) else "none"
    figures: dict[str, Figure] = {
        "num_tokens": len(batch.positions),
        "launch": launch,
        "of_allowed_error": worst,
    }
    if is_beyond:
        return Finding(what, figures, "keys or values were stored where no token of a step is")
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(what, figures, fault)


def _share(found: Tensor, expected: Tensor, error: float) -> float:
    """Return the largest difference in parts of what rounding explains; NaN is infinitely far."""
    allowed = 2 * error * expected.abs().max()
    return float(((found - expected).abs() / allowed).nan_to_num(torch.inf).max())


def _elements(store: KVStore) -> list[Tensor]:
    kept = [*store.keys, *(values for values in store.values if values is not None)]
    return [each.elements for each in kept]
