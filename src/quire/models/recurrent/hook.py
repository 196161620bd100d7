"""Runs a recurrent module of transformers by its family's code within a step, over its states."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from quire.models.config import RecurrentLayer
from quire.models.recurrent.division import Division
from quire.models.recurrent.families.registry import family_of
from quire.models.recurrent.family import JoinedProjections, RecurrentFamily, RecurrentStep
from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.pieces import Pieces


@dataclass(frozen=True, slots=True)
class StateAccess:
    """The states of all recurrent layers within one step: `parts` are those of each layer, by its
    index."""

    kernels: RecurrentKernels
    pieces: Pieces
    parts: Mapping[int, tuple[Tensor, ...]]


@dataclass(slots=True)
class RecurrentContext:
    """The states that the modules of a model use now; all of its hooks share one context. None
    means that the modules run by transformers' own code, each row from its beginning."""

    access: StateAccess | None = None

    def saved(self) -> list[Tensor]:
        """Return copies of all states, for a step that is computed again."""
        return [each.clone() for each in self._states]

    def restore(self, saved: list[Tensor]) -> None:
        """Set all states to what `saved` has returned."""
        for each, before in zip(self._states, saved, strict=True):
            each.copy_(before)

    @property
    def _states(self) -> list[Tensor]:
        if self.access is None:
            return []
        return [each for parts in self.access.parts.values() for each in parts]


@dataclass(slots=True)
class RecurrentForward:
    """Stands in for the forward of a recurrent module.

    joined: the projections of the module's input as one product, where they are one.
    """

    part: nn.Module
    index: int
    family: RecurrentFamily
    context: RecurrentContext
    joined: JoinedProjections | None = None

    def __call__(self, hidden_states: Tensor, *args: object, **extras: object) -> Tensor:
        access = self.context.access
        if access is None:
            out: Tensor = type(self.part).forward(self.part, hidden_states, *args, **extras)
            return out
        step = RecurrentStep(access.kernels, access.pieces, access.parts[self.index], self.joined)
        return self.family.compute(self.part, hidden_states[0], step)[None]


def recurrent_layers(module: nn.Module) -> tuple[RecurrentLayer, ...]:
    """Return the recurrent layers of a module, in their order. Raises UnsupportedModel for a module
    that is not as its family's."""
    found = {index: family.state(part) for index, part, family in _parts(module)}
    return tuple(RecurrentLayer(index, found[index]) for index in sorted(found))


def recurrent_divisions(module: nn.Module) -> dict[str, Division]:
    """Return how ranks divide each recurrent module of a whole model, by its name."""
    found = [(name, part, family_of(part)) for name, part in module.named_modules()]
    return {name: family.division(part) for name, part, family in found if family is not None}


def attach_states(module: nn.Module, context: RecurrentContext) -> None:
    """Let each recurrent module run by its family's code while the context gives it states."""
    for index, part, family in _parts(module):
        setattr(part, "forward", RecurrentForward(part, index, family, context))  # noqa: B010


def _parts(module: nn.Module) -> list[tuple[int, nn.Module, RecurrentFamily]]:
    """Return the recurrent modules, each with the index of its layer and its family."""
    found = [(part, family_of(part)) for part in module.modules()]
    return [
        (int(part.layer_idx), part, family)  # type: ignore[arg-type]
        for part, family in found
        if family is not None
    ]
