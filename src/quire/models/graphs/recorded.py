"""The capture of one kind of steps, and its report."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from quire.models.batch import Batch
from quire.models.graphs.capture import (
    Cut,
    GraphDevice,
    GraphRecorder,
    Recording,
    capture_sizes,
)
from quire.models.graphs.crossings import reason

logger = logging.getLogger(__name__)

NO_MEMORY = "there is no memory for them"


class ReplayedSteps(Protocol):
    """Captured steps of one kind, `name` in metrics."""

    @property
    def name(self) -> str: ...

    def replay(self, batch: Batch) -> Tensor | None:
        """Return the logits of a step, valid until the next one, or None if it is of another kind
        or larger than all that were captured."""
        ...


class CaptureResult(NamedTuple):
    """A kind of steps, captured where that could be done.

    steps: what replays them; None if they are not captured.
    largest: the tokens of the largest captured step; 0 if there are none.
    num_sizes, num_graphs: how many sizes of steps were captured, and as how many graphs in all.
    why_not: why there are none, in words.
    """

    steps: ReplayedSteps | None
    largest: int = 0
    num_sizes: int = 0
    num_graphs: int = 0
    why_not: str = ""


class CaptureKind(NamedTuple):
    """A kind of steps to capture. `what` names them in logs, in the plural, and `run` computes one
    of a size in tokens."""

    what: str
    sizes: Sequence[int]
    run: Callable[[int, Cut], None]


def record(
    kind: CaptureKind,
    model_name: str,
    device: GraphDevice,
    build: Callable[[Mapping[int, Recording]], ReplayedSteps],
    on_progress: Callable[[int, int], None],
) -> CaptureResult:
    """Capture steps in a memory pool of their own and return the result of `build`. A failure is
    undone and logged with its reason."""
    try:
        recordings = capture_sizes(GraphRecorder(device), kind.sizes, kind.run, on_progress)
    except RuntimeError as error:
        why = reason(error)
        logger.warning("%s launches %s operation by operation: %s", model_name, kind.what, why)
        return CaptureResult(None, why_not=why)
    if not recordings:
        return CaptureResult(None, why_not=NO_MEMORY)
    num_graphs = sum(each.num_graphs for each in recordings.values())
    return CaptureResult(build(recordings), max(recordings), len(recordings), num_graphs)
