"""Captures a model's steps of all requested kinds, the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.capture import GraphDevice
from quire.models.graphs.decode import ReplayableBackend, record_decode
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.graphs.pieces import PieceBuffers, PieceLimits, record_pieces
from quire.models.graphs.recorded import CaptureResult
from quire.models.graphs.sizes import GraphKinds
from quire.models.hf import HFModel


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The kinds of steps to capture, and the largest: of `limits`, and of `max_num_tokens`."""

    kinds: GraphKinds
    limits: DecodeLimits
    max_num_tokens: int


class RecordedSteps(NamedTuple):
    """A model with its captured steps, and the report of each kind; None for kinds that were not
    requested."""

    model: HFModel | GraphedModel
    decode: CaptureResult | None
    pieces: CaptureResult | None


def record_steps(
    model: HFModel,
    plan: GraphPlan,
    device: GraphDevice,
    on_progress: Callable[[str, int, int], None],
) -> RecordedSteps:
    """Return `model` with its steps captured as far as they can be. Raises TooLittleMemory and
    RankLost where it is one of several ranks."""
    decode = pieces = None
    if plan.kinds.decode:
        assert isinstance(model.backend, ReplayableBackend), "only then they are asked for"
        decode = record_decode(
            model,
            model.backend,
            Buffers(plan.limits, model.device),
            device,
            lambda done, total: on_progress("graphs", done, total),
        )
    if plan.kinds.pieces:
        pieces = record_pieces(
            model,
            PieceBuffers(PieceLimits(plan.max_num_tokens, plan.limits.max_num_seqs), model.device),
            device,
            lambda done, total: on_progress("piecewise_graphs", done, total),
        )
    recorded = [each for each in (decode, pieces) if each is not None]
    return RecordedSteps(with_recorded(model, *recorded), decode, pieces)
