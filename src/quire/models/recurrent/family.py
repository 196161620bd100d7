"""The interface between a recurrent module of transformers and the step that runs."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from quire.cache.spec import StateSpec
from quire.models.recurrent.division import Division
from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.pieces import Pieces


@dataclass(frozen=True, slots=True)
class RecurrentStep:
    """A step as one recurrent layer sees it: `states` are the parts of the layer's states,
    [num_states, *shape] for each shape of its `StateSpec`, in float32."""

    kernels: RecurrentKernels
    pieces: Pieces
    states: tuple[Tensor, ...]


class RecurrentFamily(Protocol):
    """A kind of recurrent modules, which computes them by its own code: the module's weights and
    projections, and the kernels of the step."""

    class_names: frozenset[str]
    """The classes of transformers' modules that are of this kind."""

    def division(self, part: nn.Module) -> Division:
        """Return the division of a whole module among ranks. `compute` and `state` do for a rank's
        part, whose counts are its own, as for a whole module."""
        ...

    def state(self, part: nn.Module) -> StateSpec:
        """Return the state that the module keeps of a sequence. Raises UnsupportedModel for one
        that is not as its family's."""
        ...

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        """Return the module's outputs [T, hidden_size] for `rows` [T, hidden_size]."""
        ...
