"""The vectors of requests that pool their prompt: which states of a chunk are part of one, their
sums from chunk to chunk, and the vector that is sent.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.sampling.device_to_host import DeviceToHost, HostCopy
from quire.scheduler.request import Pooling, PoolingKind
from quire.scheduler.step import SeqChunk

Numbers: TypeAlias = NDArray[np.int64]


@dataclass(slots=True)
class PromptPooling:
    """The pooling of one running request. `total` is the sum of the states that are part of its
    vector, [hidden_size] float64, of all chunks so far: in double precision the rounding of the sum
    is nothing beside that of the states, however the prompt is cut.
    """

    pooling: Pooling
    num_prompt_tokens: int
    total: Tensor | None = None

    def rows(self, chunk: SeqChunk) -> range:
        """Return the tokens of a chunk, counted from its first, whose states are needed."""
        end = chunk.start + chunk.num_tokens
        match self.pooling.kind:
            case PoolingKind.MEAN:
                return range(chunk.num_tokens)
            case PoolingKind.CLS:
                return range(int(chunk.start == 0))
            case PoolingKind.LAST:
                is_last = end == self.num_prompt_tokens
                return range(chunk.num_tokens - 1, chunk.num_tokens) if is_last else range(0)

    def add(self, states: Tensor) -> None:
        """Add the states [rows, hidden_size] of a chunk's needed tokens."""
        if len(states):
            part = states.sum(0, dtype=torch.float64)
            self.total = part if self.total is None else self.total + part

    def is_complete(self, chunk: SeqChunk) -> bool:
        """Return whether the chunk is the last of the prompt."""
        return chunk.start + chunk.num_tokens == self.num_prompt_tokens

    def mean(self) -> Tensor:
        """Return the pooled state [hidden_size] float64 of a prompt that is complete."""
        assert self.total is not None
        is_mean = self.pooling.kind is PoolingKind.MEAN
        return self.total / self.num_prompt_tokens if is_mean else self.total


@dataclass(slots=True)
class PooledSpans:
    """The states of a step that its chunks need. `indices` are of the step's tokens; `spans` are
    each pooled chunk, its request's pooling, and the first and the end of its rows of states."""

    indices: list[int] = field(default_factory=list)
    spans: list[tuple[SeqChunk, PromptPooling, int, int]] = field(default_factory=list)

    def add(self, chunk: SeqChunk, pooling: PromptPooling, first_token: int) -> None:
        """Note a chunk of a request that pools, whose first token is the step's `first_token`."""
        before = len(self.indices)
        self.indices.extend(first_token + row for row in pooling.rows(chunk))
        self.spans.append((chunk, pooling, before, len(self.indices)))

    def drop(self, request_ids: Container[str]) -> None:
        """Forget the states of these requests, which could not be computed."""
        self.spans = [span for span in self.spans if span[0].request_id not in request_ids]


class Vectors(NamedTuple):
    """The vectors of a step by request id, as bytes of float32, and those that hold NaN or
    infinity."""

    complete: dict[str, bytes]
    not_finite: frozenset[str]


class PendingVectors(NamedTuple):
    """Pooled states [requests, hidden_size] float64 on their way to the host."""

    request_ids: tuple[str, ...]
    poolings: tuple[Pooling, ...]
    states: HostCopy

    def result(self) -> Vectors:
        """Wait for the states and return the vectors made from them."""
        states: NDArray[np.float64] = self.states.wait().numpy()
        finite: list[bool] = [bool(np.isfinite(state).all()) for state in states]
        pairs = zip(self.request_ids, finite, strict=True)
        complete = {
            request_id: vector_bytes(state, pooling)
            for request_id, pooling, state in zip(
                self.request_ids, self.poolings, states, strict=True
            )
        }
        return Vectors(complete, frozenset(each for each, is_finite in pairs if not is_finite))


def pooled_spans(
    chunks: Sequence[SeqChunk], poolings: Sequence[PromptPooling | None], starts: Sequence[int]
) -> PooledSpans:
    """Return the states that the chunks of a step need; chunk i begins at its token `starts[i]`."""
    spans = PooledSpans()
    for chunk, pooling, first in zip(chunks, poolings, starts, strict=False):
        if pooling is not None:
            spans.add(chunk, pooling, first)
    return spans


def pool(spans: PooledSpans, states: Tensor, to_host: DeviceToHost) -> PendingVectors | None:
    """Add a step's states to the sums of their requests, and start to copy those of the prompts
    that are complete; None if none is."""
    complete: list[tuple[str, PromptPooling]] = []
    for chunk, pooling, first, end in spans.spans:
        pooling.add(states[first:end])
        if pooling.is_complete(chunk):
            complete.append((chunk.request_id, pooling))
    if not complete:
        return None
    ids, poolings = zip(*complete, strict=True)
    means = torch.stack([each.mean() for each in poolings])
    return PendingVectors(ids, tuple(each.pooling for each in poolings), to_host.fetch(means))


def token_types(
    poolings: Sequence[PromptPooling | None], owners: Numbers, positions: Numbers
) -> tuple[Numbers, ...]:
    """Return 1 for each token of a second text and 0 for others, nothing where there is none.

    owners, positions: for each token of a step, whose it is of `poolings`, and its place there.
    """
    seconds = [None if each is None else each.pooling.second_text for each in poolings]
    if all(each is None for each in seconds):
        return ()
    never = np.iinfo(np.int64).max
    starts = np.array([never if each is None else each for each in seconds])
    return ((positions >= starts[owners]).astype(np.int64),)


def vector_bytes(state: Sequence[float] | NDArray[np.float64], pooling: Pooling) -> bytes:
    """Return the vector that is made of a pooled state: cut, then normalised, as float32. A state
    of zeros has no direction and stays as it is."""
    vector = np.asarray(state, dtype=np.float64)[: pooling.num_dimensions]
    if pooling.is_normalized:
        vector = vector / (np.linalg.norm(vector) or 1.0)
    return vector.astype(np.float32).tobytes()
