"""Rows to sample from, and the naive sampler they are judged by: dense logits, full sorts, fp64."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits
from quire.engine.sampling.noise import uniform
from quire.engine.sampling.processors.table import PROCESSORS
from quire.engine.sampling.sampler import Sampler, SamplerOutput
from quire.engine.sampling.sampling_state import SamplingState, build_sampling_state
from quire.engine.sampling.tiles import TILE
from quire.models.native.sampling.sampling import num_mask_words
from quire.scheduler.request import Sampling, Stopping
from tests.models.rounding import unit
from tests.rounding import LAMBDA, compounded

VOCAB_SIZES = (32, 33, 127, 128, 129, 1000, 2000, 15_000)
CPU = torch.device("cpu")
Make = Callable[[int], Sampler]
"""A sampler for a vocabulary of that size."""
MIXED = (
    Sampling(temperature=0.0),
    Sampling(),
    Sampling(temperature=0.7, top_p=0.95, num_logprobs=2),
    Sampling(temperature=3.0, top_p=0.9),
    Sampling(top_k=50, top_p=0.9),
    Sampling(top_k=3000),
    Sampling(min_p=0.02, num_logprobs=0),
    Sampling(min_p=0.02, top_p=0.9),
    Sampling(frequency_penalty=0.5, repetition_penalty=1.3),
)
"""Of every kind."""


@dataclass(frozen=True)
class Allowed:
    """A logits processor of these tests: it allows the same tokens for ever."""

    token_ids: frozenset[int]

    @property
    def is_done(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        """Change nothing."""

    def edit(self, edits: RowEdits) -> None:
        bits = torch.zeros(num_mask_words(edits.vocab_size) * 32, dtype=torch.bool)
        bits[list(self.token_ids)] = True
        powers = 1 << torch.arange(32)
        edits.allow((bits.view(-1, 32) * powers).sum(-1).to(torch.int32))


@dataclass(frozen=True)
class Case:
    """A request to sample for. Of `allowed` None every token may be sampled."""

    sampling: Sampling
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    stopping: Stopping = Stopping(64)
    allowed: frozenset[int] | None = None

    def state(self) -> SamplingState:
        """As the runner builds it for a request that joins or is resumed."""
        context = ProcessorContext(
            self.sampling, self.stopping, self.token_ids, self.num_prompt_tokens
        )
        allowed = self.allowed
        if allowed is None:
            return build_sampling_state(context)
        return build_sampling_state(context, (*PROCESSORS, lambda _: Allowed(allowed)))


class Reference(NamedTuple):
    """What a row may sample: a probability for each id; `margin` is how near the next threshold
    is, and what is nearer to one than `unsure` may fall on either side by rounding."""

    probabilities: Tensor
    margin: float
    unsure: float

    @property
    def is_sure(self) -> bool:
        return self.margin >= self.unsure

    def sample(self, noise: float) -> int | None:
        """The id at `noise` by inverse CDF in order of id, or None too near a step."""
        sums = self.probabilities.cumsum(0)
        if float((sums - noise).abs().min()) < self.unsure:
            return None
        return min(int((sums <= noise).sum()), len(sums) - 1)


def sum_error(probabilities: Tensor, below: Tensor) -> float:
    """What a sum of some of the probabilities may be off. Each lies `below` the largest logit, over
    the temperature: that is rounded twice, and the exponential is six units off, as is that of the
    largest logit of a tile. A weight is then rounded to a whole number of its tile's ticks, of
    which there are as many as float32 can tell: that is half a tick off, evenly spread, for TILE
    numbers of each tile, and adds up to the most where one tile has all of the weight."""
    logs = float((probabilities * below).nan_to_num(0.0).sum())
    ticks = LAMBDA * math.sqrt(TILE / 3 * float(probabilities.max()))
    return compounded(12 + 2 * logs + ticks, unit(torch.float32))


@st.composite
def logits_of(draw: st.DrawFn, vocab_size: int, num_rows: int) -> Tensor:
    """Peaked, flat, coarse with many ties, or with holes of -inf; as fp32 or bf16."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from((0.01, 1.0, 4.0, 30.0)))
    logits = torch.randn(num_rows, vocab_size, generator=generator) * scale
    if draw(st.booleans()):
        logits = (logits * 2).round() / 2
    if draw(st.booleans()):
        holes = torch.rand(num_rows, vocab_size, generator=generator) < 0.3
        logits = logits.masked_fill(holes, -torch.inf)
        logits[:, draw(st.integers(0, vocab_size - 1))] = 1.0
    return logits.to(draw(st.sampled_from((torch.float32, torch.bfloat16))))


def samplings(vocab_size: int) -> st.SearchStrategy[Sampling]:
    ids = st.integers(0, vocab_size - 1)
    penalty = st.one_of(st.just(0.0), st.floats(-2, 2))
    biases = st.dictionaries(ids, st.floats(-100, 100), max_size=3)
    return st.builds(
        Sampling,
        temperature=st.sampled_from((0.0, 1e-5, 0.3, 1.0, 1.0, 1.7, 100.0)),
        top_k=st.sampled_from((0, 0, 1, 2, 50, 200, vocab_size - 1, vocab_size, vocab_size + 1)),
        top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999), st.just(1e-9)),
        min_p=st.one_of(st.just(0.0), st.floats(1e-6, 1.0), st.just(1.0)),
        repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2)),
        frequency_penalty=penalty,
        presence_penalty=penalty,
        logit_bias=biases.map(lambda found: tuple(found.items())),
        seed=st.integers(-(2**63), 2**64 - 1),
        num_logprobs=st.sampled_from((None, None, 0, 3, vocab_size + 1)),
    )


@st.composite
def cases(draw: st.DrawFn, vocab_size: int) -> Case:
    ids = st.integers(0, vocab_size - 1)
    token_ids = draw(st.lists(ids, min_size=1, max_size=12))
    num_prompt_tokens = draw(st.integers(1, len(token_ids)))
    ends = tuple(draw(st.lists(st.integers(0, vocab_size + 5), max_size=2)))
    stopping = Stopping(64, draw(st.integers(0, 8)), ends[:1], ends[1:])
    allowed = draw(st.none() | st.none() | st.frozensets(ids, min_size=1))
    return Case(draw(samplings(vocab_size)), tuple(token_ids), num_prompt_tokens, stopping, allowed)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, list[Case]]:
    """Of so few logits that torch starts no threads: these tests share their machine."""
    vocab_size = draw(st.sampled_from(VOCAB_SIZES))
    max_rows = 8 if vocab_size <= 2000 else 2
    rows = draw(st.lists(cases(vocab_size), min_size=1, max_size=max_rows))
    return draw(logits_of(vocab_size, len(rows))), rows


def sample_all(make: Make, logits: Tensor, rows: list[Case]) -> SamplerOutput:
    return make(logits.shape[1]).sample(logits, [row.state() for row in rows]).result()


def row_of(sampling: Sampling, token_ids: Sequence[int], num_prompt_tokens: int = 1) -> Case:
    return Case(sampling, tuple(token_ids), num_prompt_tokens)


def processed(logits: Tensor, row: Case) -> Tensor:
    """The logits of one row after bans, biases, penalties and the mask, one token at a time."""
    params = row.sampling
    outputs = Counter(row.token_ids[row.num_prompt_tokens :])
    processed = logits.float().clone()
    if len(row.token_ids) - row.num_prompt_tokens < row.stopping.min_tokens:
        for token_id in (*row.stopping.eos_token_ids, *row.stopping.stop_token_ids):
            processed[token_id : token_id + 1] = -torch.inf
    for token_id, bias in params.logit_bias:
        processed[token_id] += bias
    for token_id in set(row.token_ids):
        value, penalty = processed[token_id], torch.tensor(params.repetition_penalty)
        processed[token_id] = value / penalty if value > 0 else value * penalty
        processed[token_id] -= torch.tensor(params.frequency_penalty) * outputs[token_id]
        processed[token_id] -= params.presence_penalty * (outputs[token_id] > 0)
    if row.allowed is not None:
        for token_id in set(range(len(processed))) - row.allowed:
            processed[token_id] = -torch.inf
    return processed


def reference(logits: Tensor, row: Case) -> Reference:
    """min_p, then top_k, then top_p of what these left."""
    params, logits = row.sampling, processed(logits, row).double()
    order = logits.sort(descending=True, stable=True).indices
    if params.temperature == 0:
        return Reference(torch.zeros_like(logits).index_fill_(0, order[:1], 1.0), 1.0, 0.0)
    below = ((logits.max() - logits) / params.temperature)[order]
    sorted_ = (-below).softmax(0)
    unsure = sum_error(sorted_, below)
    margins = [1.0]
    if params.min_p:
        relative = sorted_ / sorted_[0]
        peaks = logits[order] == logits.max()
        margins += ((relative - params.min_p).abs() + peaks.double()).tolist()
        sorted_[relative < params.min_p] = 0
    if params.top_k:
        sorted_[params.top_k :] = 0
    if params.top_p < 1:
        sorted_ /= sorted_.sum()
        unsure = max(unsure, sum_error(sorted_, below))
        before = sorted_.cumsum(0) - sorted_
        margins += (before - params.top_p).abs().tolist()[1:]
        sorted_[before >= params.top_p] = 0
    sorted_ /= sorted_.sum()
    unsure = max(unsure, sum_error(sorted_, below))
    return Reference(torch.zeros_like(logits).index_copy_(0, order, sorted_), min(margins), unsure)


def expected(logits: Tensor, row: Case) -> int | None:
    """The token the row samples, or None where rounding may decide."""
    judged = reference(logits, row)
    if not judged.is_sure:
        return None
    return judged.sample(uniform(row.sampling.seed, len(row.token_ids)))
