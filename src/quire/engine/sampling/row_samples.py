"""Samples the rows of a step; where that fails, in halves, until it is known which rows fail."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.sampler import PendingSample, Sampler, SamplerOutput
from quire.engine.sampling.sampling_state import SamplingState
from quire.engine.step_errors import check_device, failure_of
from quire.scheduler.step import StepFailure

logger = logging.getLogger(__name__)


class RowSamples(NamedTuple):
    """The tokens of the rows. Those of `failed_rows`, by their index, mean nothing. `failure` says
    what kept the rows from being sampled at once, if anything did.
    """

    pending: PendingSample
    failed_rows: frozenset[int] = frozenset()
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class FailedSample:
    """Stands for the sample of one row that failed, on `device`."""

    device: torch.device

    @property
    def token_ids(self) -> Tensor:
        return torch.zeros(1, dtype=torch.int64, device=self.device)

    def result(self) -> SamplerOutput:
        return SamplerOutput([0], [None], [False])


@dataclass(frozen=True, slots=True)
class JoinedSample:
    """The samples of several parts of the rows, in their order."""

    parts: Sequence[PendingSample]

    @property
    def token_ids(self) -> Tensor:
        return torch.cat([part.token_ids for part in self.parts])

    def result(self) -> SamplerOutput:
        joined = SamplerOutput([], [], [])
        for part in self.parts:
            token_ids, logprobs, not_finite = part.result()
            joined.token_ids.extend(token_ids)
            joined.logprobs.extend(logprobs)
            joined.not_finite.extend(not_finite)
        return joined


def sample_rows(sampler: Sampler, logits: Tensor, rows: Sequence[SamplingState]) -> RowSamples:
    """Return a sample of each row of `logits`.

    Raises DeviceFailed where the device is dead, and the rows' own error where all of two or more
    fail: then it is nothing about one of them.
    """
    try:
        return RowSamples(sampler.sample(logits, rows))
    except Exception as error:
        check_device(logits.device, error)
        first = error
    logger.warning("sampling %d rows fails and is done in parts: %s", len(rows), first)
    found: list[PendingSample] = []
    failed: set[int] = set()
    left = [range(len(rows))]
    while left:
        part = left.pop()
        try:
            found.append(
                sampler.sample(logits[part.start : part.stop], rows[part.start : part.stop])
            )
        except Exception as error:
            check_device(logits.device, error)
            if len(part) > 1:
                middle = part.start + len(part) // 2
                left += [range(middle, part.stop), range(part.start, middle)]
                continue
            logger.warning("a row cannot be sampled: %s", error)
            failed.add(part.start)
            found.append(FailedSample(logits.device))
    if len(failed) == len(rows) > 1:
        raise first
    return RowSamples(JoinedSample(found), frozenset(failed), failure_of(first))
