"""The attention of models that have none."""

from torch import Tensor

from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch
from quire.models.config import LayerFacts


class NoAttention:
    """Implements `AttentionBackend` and `AttentionStep` for a model without attention layers."""

    name = "none"

    def begin(self, batch: Batch) -> "NoAttention":
        return self

    def over(self, inputs: StepInputs) -> "NoAttention":
        return self

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        raise RuntimeError("a layer attends, of a model that was measured without attention")
