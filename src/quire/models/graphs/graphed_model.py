"""A model whose steps are CUDA graphs where they can be: on a GPU a step of few tokens takes longer
to launch, one operation after the other, than to compute. So steps are captured once for each of a
list of sizes, over tensors that stay where they are; running one means to fill those and replay the
graphs. A step of another kind, or a larger one, is launched as usual.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.batch import Batch, StepRows
from quire.models.block_rows import BlockRows
from quire.models.graphs.recorded import CaptureResult, ReplayedSteps
from quire.models.hf import HFModel

LAUNCHED = "none"
"""The name of steps that are launched operation by operation."""


class GraphedModel:
    """Implements `Model` by `model`, with `kinds` of steps that are replayed: the first that takes
    a step does. Logits of replayed steps are valid until the next step.

    launch: the name of the kind that took the last step, LAUNCHED if none did.
    """

    def __init__(self, model: HFModel, kinds: Sequence[ReplayedSteps]) -> None:
        self._model = model
        self._kinds = tuple(kinds)
        self.launch = LAUNCHED

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self._model.copy_blocks(copies, new_blocks)

    def block_rows(self) -> BlockRows | None:
        return self._model.block_rows()

    def state_rows(self) -> BlockRows | None:
        return self._model.state_rows()

    @property
    def state_form(self) -> str:
        return self._model.state_form

    def take_copy_time(self) -> CopyTime:
        return self._model.take_copy_time()

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        for steps in self._kinds:
            logits = steps.replay(batch)
            if logits is not None:
                self.launch = steps.name
                return logits
        self.launch = LAUNCHED
        return self._model.forward(batch)

    def forward_with_states(self, batch: Batch) -> StepRows:
        """Launch the step operation by operation: what was captured computes logits alone."""
        self.launch = LAUNCHED
        return self._model.forward_with_states(batch)


def with_recorded(model: HFModel, *recorded: CaptureResult) -> HFModel | GraphedModel:
    """Return `model` with its captures; itself if nothing was."""
    kinds = [each.steps for each in recorded if each.steps is not None]
    return GraphedModel(model, kinds) if kinds else model
