"""Quire beside transformers: all requests at once, in turns, each setting of the peer warm."""

import gc
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import transformers

from bench.gpu.check import Finding, Place
from bench.gpu.speed.decoding import LOAD, REHEARSED_LOAD, Load, build_engine, decode, prompts_of
from bench.gpu.speed.llama import SIZES, make_checkpoint
from bench.gpu.speed.peer import (
    Generate,
    Prompts,
    continuous,
    continuous_settings,
    load_peer,
    one_batch,
    tokens_s,
)

ROUNDS = 3
Ours = Callable[[Prompts], float]
NOT_RUN = "vLLM, SGLang: their wheels are too large to be carried"
PEER = f"transformers {transformers.__version__}"


class Contest(NamedTuple):
    """Quire, which returns tokens a second, beside a peer at the load's largest batch."""

    name: str
    ours: Ours
    load: Load
    vocab: int

    def against(self, peer: str, generate: Generate) -> Finding:
        """Let both take turns; the ratio is the median of the rounds' own."""
        load, batch = self.load, max(self.load.batches)
        ours, theirs = [], []
        for seed in range(ROUNDS + 1):
            prompts = prompts_of(batch, load.num_prompt, self.vocab, seed)
            ours.append(self.ours(prompts))
            theirs.append(tokens_s(generate, prompts, load))
        ours, theirs = ours[1:], theirs[1:]  # the first round warms up
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        figures = {
            "tokens_s": statistics.median(ours),
            "peer_tokens_s": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "least_ratio": min(ratios),
            "most_ratio": max(ratios),
        }
        return Finding(f"{self.name} at {batch}, beside {PEER}, {peer}", figures)


def check_1b(place: Place) -> Iterator[Finding]:
    """Compare with a 1B model."""
    return _compared("1b", place)


def check_8b(place: Place) -> Iterator[Finding]:
    """Compare with an 8B model, which is rehearsed by what `check_1b` does."""
    if place.is_rehearsal:
        yield Finding("the same as with a 1B", {})
    else:
        yield from _compared("8b", place)


def _compared(name: str, place: Place) -> Iterator[Finding]:
    """Yield a finding for each setting of the peer that runs, then the ratio to the fastest. One
    that does not run is named with why."""
    name, load = ("tiny", REHEARSED_LOAD) if place.is_rehearsal else (name, LOAD)
    folder, size = place.folder / name, SIZES[name]
    make_checkpoint(folder, size, place.device)
    gc.collect()
    engine = build_engine(folder, place.device, load)
    contest = Contest(
        name, lambda prompts: decode(engine, prompts, load.num_output).tokens_s, load, size.vocab
    )
    found = []
    for finding in _findings(contest, place):
        yield finding
        if "ratio" in finding.figures:
            found.append(finding)
    if found:
        fastest = min(found, key=lambda finding: float(finding.figures["ratio"] or 0))
        figures = {**fastest.figures, "not_run": NOT_RUN}
        yield Finding(f"{name}, beside the fastest of these: {fastest.what}", figures)
    engine.close()


def _findings(contest: Contest, place: Place) -> Iterator[Finding]:
    """Yield what each setting gives. Compiling takes long, and is for the smaller model alone."""
    load = contest.load
    model = load_peer(place.folder / contest.name, place.device)
    for name, setting in continuous_settings(load, is_rehearsal=place.is_rehearsal).items():
        try:
            with continuous(model, setting, load) as (chosen, generate):
                yield contest.against(f"continuous batching, {name}: {chosen}", generate)
        except Exception as error:
            yield Finding(f"{PEER}, continuous batching, {name}", {"why_not": repr(error)})
        gc.collect()
    for is_compiled in (False, True) if contest.name == "1b" else (False,):
        name = "one batch, static cache, compiled" if is_compiled else "one batch"
        try:
            yield contest.against(name, one_batch(model, load, is_compiled=is_compiled))
        except Exception as error:
            yield Finding(f"{PEER}, {name}", {"why_not": repr(error)})
