"""Recurrent modules of tiny random models, each alone."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from quire.cache.spec import StateSpec
from quire.models.recurrent.families.registry import family_of
from quire.models.recurrent.family import RecurrentFamily, RecurrentStep
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.kernels import ReferenceKernels
from tests.models.checkpoints import tiny_config
from tests.models.families import Family
from tests.models.recurrent.cuts import Inputs

KERNELS = ReferenceKernels()
STD = 0.5


class RowByRow(nn.Module):
    """A linear layer whose output for a row does not depend on the rows beside it, to the bit."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = like.weight, like.bias

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2)
        found = torch.cat([linear(row[None], self.weight, self.bias) for row in flat])
        return found.view(*rows.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class ModuleSubject:
    """A module and its family. Its states are the parts one after another, flat."""

    family: RecurrentFamily
    part: nn.Module
    spec: StateSpec

    @property
    def hidden_size(self) -> int:
        owner = self.part if hasattr(self.part, "hidden_size") else self.part.config
        size: object = getattr(owner, "hidden_size")  # noqa: B009
        assert isinstance(size, int)
        return size

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.spec.num_elements,)

    def compute(self, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
        """Return the outputs of rows [T, hidden_size], the only inputs."""
        (rows,) = inputs
        sizes = [prod(shape) for shape in self.spec.shapes]
        parts = tuple(
            part.view(-1, *shape)
            for part, shape in zip(
                states.split_with_sizes(sizes, dim=1), self.spec.shapes, strict=True
            )
        )
        with torch.inference_mode():
            return self.family.compute(self.part, rows, RecurrentStep(KERNELS, pieces, parts))


def recurrent_module(family: Family) -> ModuleSubject:
    """The first recurrent module of a model, with random weights that matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(tiny_config(family))  # type: ignore[no-untyped-call]
        found = [(family_of(part), part) for part in model.modules()]
        kind, part = next((kind, part) for kind, part in found if kind is not None)
        for parameter in part.parameters():
            if parameter.dim() == 1 or parameter.std() < STD / 2:
                parameter.data += STD * torch.randn_like(parameter)
    return ModuleSubject(kind, part.eval().requires_grad_(False), kind.state(part))


def row_by_row(part: nn.Module) -> None:
    """Replace the linear layers of the module."""
    for owner in list(part.modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, nn.Linear):
                setattr(owner, name, RowByRow(child))
