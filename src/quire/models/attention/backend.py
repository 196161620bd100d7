"""What every attention backend offers, and what its one test suite checks.

`begin` looks at a step's batch once; each layer then attends within that step. The K and V of all
its tokens are in their slots before any of them is read.
"""

from typing import Protocol

from torch import Tensor

from quire.models.batch import Batch
from quire.models.config import LayerFacts


class AttentionStep(Protocol):
    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store the T tokens' `key`, [T, kv heads, k_width], and `value`, [T, kv heads, v_width];
        attend with `query`, [T, heads, k_width]. `LayerFacts` tells what a token sees and how its
        scores are made; `sinks`, [heads], are there if it says so. Returns [T, heads, v_width].
        """
        ...


class AttentionBackend(Protocol):
    def begin(self, batch: Batch) -> AttentionStep: ...
