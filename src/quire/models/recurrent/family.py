"""The interface between a recurrent module of transformers and the step that runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from quire.cache.spec import StateSpec
from quire.models.recurrent.division import Division
from quire.models.recurrent.kernels import DeltaNetWeights, RecurrentKernels, ShortConvWeights
from quire.models.recurrent.pieces import Pieces


class ModuleCore(NamedTuple):
    """The weights of a recurrent module between its projections, and the name of the linear layer
    that multiplies its outputs. The projections are in the order of `DeltaNetInputs`, of which the
    first may be several, or one of the gates and rows of a short convolution."""

    weights: DeltaNetWeights | ShortConvWeights
    output: str


JoinedProjections = Callable[[Tensor], tuple[Tensor, ...]]
"""Computes all projections of a module's input, in their order."""


@dataclass(frozen=True, slots=True)
class RecurrentStep:
    """A step as one recurrent layer sees it.

    states: the parts of the layer's states, [num_states, *shape] for each shape of its `StateSpec`,
        in float32.
    joined: the layer's projections as one product, where they are one.
    """

    kernels: RecurrentKernels
    pieces: Pieces
    states: tuple[Tensor, ...]
    joined: JoinedProjections | None = None

    def project(self, part: nn.Module, names: tuple[str, ...], rows: Tensor) -> tuple[Tensor, ...]:
        """Return what each of the module's projections, which have these names, makes of `rows`."""
        if self.joined is not None:
            return self.joined(rows)
        return tuple(part.get_submodule(name)(rows) for name in names)


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

    def projections(self, part: nn.Module) -> tuple[str, ...]:
        """Return the names of the linear layers that multiply the module's input as it is."""
        ...

    def core(self, part: nn.Module) -> ModuleCore | None:
        """Return what lies between the module's linear layers, None where a decoder in one call has
        no kernel for it."""
        ...

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        """Return the module's outputs [T, hidden_size] for `rows` [T, hidden_size]."""
        ...
