"""Attention by FlashInfer for plain layers, and by Triton's kernels for the others. Triton's kernel
writes the keys and values of all, since FlashInfer reads the same blocks."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from quire.models.attention.backend import check_sinks, dense_rows
from quire.models.attention.flashinfer.kind import kind_of
from quire.models.attention.flashinfer.plans import (
    Planner,
    ReplayedPlans,
    StepPlans,
    launched_plans,
)
from quire.models.attention.triton.backend import TritonAttention, TritonStep
from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch
from quire.models.config import LayerFacts


@dataclass(frozen=True, slots=True)
class FlashInferAttention:
    """The attention backend of FlashInfer; `takes` says which layers are its own."""

    triton: TritonAttention
    planner: Planner
    takes: Callable[[LayerFacts], bool]

    def begin(self, batch: Batch) -> "FlashInferStep":
        return FlashInferStep(self, self.triton.begin(batch), launched_plans(self.planner, batch))

    def over(self, inputs: StepInputs) -> "FlashInferStep":
        plans = ReplayedPlans(self.planner, inputs)
        return FlashInferStep(self, self.triton.over(inputs), plans)

    def plan_replay(self, num_seqs: int, batch: Batch) -> None:
        self.planner.plan_replay(num_seqs, batch)


@dataclass(frozen=True, slots=True)
class FlashInferStep:
    """One step of `FlashInferAttention`."""

    backend: FlashInferAttention
    triton: TritonStep
    plans: StepPlans

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        check_sinks(layer, sinks)
        if not self.backend.takes(layer):
            return self.triton.attend(layer, query, key, value, sinks)
        self.triton.store(layer, query.shape[1], key, value)
        return self._attend(layer, dense_rows(query))

    def _attend(self, layer: LayerFacts, query: Tensor) -> Tensor:
        store = self.backend.triton.store
        group, index = store.layer_tensors[layer.index]
        keys, values = store.keys[index], store.values[index]
        assert values is not None, "a latent layer is not plain"
        both = keys.elements, values.elements
        out = query.new_empty(query.shape)
        for rows, wrapper in self.plans.runs(kind_of(layer, group, query.shape[1])):
            if isinstance(rows, slice):
                wrapper.run(query[rows], both, out=out[rows])
            else:
                out[rows] = wrapper.run(query[rows], both)
        return out
