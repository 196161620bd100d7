"""What every attention backend offers, and what its one test suite checks.

`begin` looks at a step's batch once; each layer then attends within that step. The K and V of all
its tokens are in their slots before any of them is read.
"""

from typing import Protocol

from torch import Tensor

from quire.models.batch import Batch
from quire.models.config import LayerFacts


class AttentionStep(Protocol):
    def attend(self, layer: LayerFacts, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the T tokens' `key` and `value`, [T, kv heads, dim]; attend with `query`,
        [T, heads, dim].

        Token i of a chunk sees the positions up to its own, and of those the last `layer.window`.
        Scores are scaled by `layer.scale`. Returns [T, heads, dim].
        """
        ...


class AttentionBackend(Protocol):
    def begin(self, batch: Batch) -> AttentionStep: ...
