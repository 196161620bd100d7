"""Divides the recurrent modules of a model among ranks, in place, as their families have it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from quire.models.config import UnsupportedModel
from quire.models.parallel.ranks import Ranks
from quire.models.parallel.weight_parts import keep_inputs, keep_outputs, rows_of, set_weight
from quire.models.recurrent.division import Division, GroupNorm, Span, Units


class SummedGroupNorm(nn.Module):
    """A gated norm over groups of elements that each lie on several ranks: this one has a part of
    the group of number `group`, with its `weight`. Sums of squares are those of all ranks."""

    def __init__(self, norm: nn.Module, shape: GroupNorm, group: int, ranks: Ranks) -> None:
        super().__init__()
        self.weight = norm.get_parameter("weight")
        self.norm_before_gate = bool(getattr(norm, "norm_before_gate", False))
        self._epsilon = float(getattr(norm, "variance_epsilon"))  # noqa: B009
        self._num_groups = shape.groups.count
        self._group_size = shape.group_size
        self._group = group
        self._ranks = ranks

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return [..., elements of this rank], through SiLU of `gate` if there is one."""
        wide = hidden_states.float()
        if gate is not None and not self.norm_before_gate:
            wide = wide * silu(gate.float())
        squares = wide.new_zeros(*wide.shape[:-1], self._num_groups)
        squares[..., self._group] = wide.square().sum(-1)
        variance = self._ranks.sum(squares)[..., self._group, None] / self._group_size
        normed = self.weight * (wide * torch.rsqrt(variance + self._epsilon))
        if gate is not None and self.norm_before_gate:
            normed = normed * silu(gate.float())
        return normed.to(hidden_states.dtype)


def shard_recurrent(part: nn.Module, division: Division, model_type: str, ranks: Ranks) -> None:
    """Keep of a recurrent module this rank's share. All units of `division` divide, as its plan has
    checked. Raises UnsupportedModel for a module that is not as its family's."""
    shard = _RecurrentShard(part, model_type, ranks)
    for name, spans in division.rows.items():
        shard.divide_rows(name, spans)
    for name, span in division.inputs.items():
        shard.divide_inputs(name, span)
    if division.norm is not None:
        shard.divide_norm(division.norm)
    for name, spans in division.counts.items():
        owner, _, last = name.rpartition(".")
        setattr(part.get_submodule(owner), last, sum(map(len, own_rows(spans, ranks))))


def own_units(units: Units, ranks: Ranks) -> range:
    """Return the units that this rank has: an equal share, or one that it shares with other
    ranks."""
    size = max(units.count // ranks.size, 1)
    first = ranks.rank * units.count // ranks.size
    return range(first, first + size)


def own_rows(spans: Sequence[Span], ranks: Ranks) -> list[range]:
    """Return the rows that this rank has of each span, as they count in the whole weight."""
    ranges, first = [], 0
    for span in spans:
        units = own_units(span.units, ranks)
        ranges.append(range(first + units.start * span.size, first + units.stop * span.size))
        first += span.num_rows
    return ranges


@dataclass(frozen=True, slots=True)
class _RecurrentShard:
    """One recurrent module while it is divided."""

    part: nn.Module
    model_type: str
    ranks: Ranks

    def divide_rows(self, name: str, spans: Sequence[Span]) -> None:
        ranges, num_rows = own_rows(spans, self.ranks), sum(span.num_rows for span in spans)
        layer = dict(self.part.named_modules()).get(name)
        if layer is None:
            self._divide_tensor(name, ranges, num_rows)
            return
        if type(layer) not in (nn.Linear, nn.Conv1d) or len(layer.weight) != num_rows:
            raise self._refuse(name, num_rows)
        keep_outputs(layer, ranges)

    def divide_inputs(self, name: str, span: Span) -> None:
        linear = self.part.get_submodule(name)
        if type(linear) is not nn.Linear or linear.in_features != span.num_rows:
            raise self._refuse(name, span.num_rows)
        (inputs,) = own_rows((span,), self.ranks)
        self.part.set_submodule(name, keep_inputs(linear, inputs, self.ranks))

    def divide_norm(self, shape: GroupNorm) -> None:
        """Let a norm over groups, whose weight is divided, have this rank's groups, or its part of
        one."""
        norm, groups = self.part.get_submodule(shape.name), shape.groups
        if groups.count % self.ranks.size:
            group = own_units(groups, self.ranks).start
            summed = SummedGroupNorm(norm, shape, group, self.ranks)
            self.part.set_submodule(shape.name, summed)
        elif hasattr(norm, "n_groups"):
            setattr(norm, "n_groups", groups.count // self.ranks.size)  # noqa: B010

    def _divide_tensor(self, name: str, ranges: Sequence[range], num_rows: int) -> None:
        """Divide a parameter or a buffer; some have dimensions of one element before their rows."""
        owner_name, _, last = name.rpartition(".")
        owner = self.part.get_submodule(owner_name)
        whole = getattr(owner, last)
        dim = next((dim for dim, size in enumerate(whole.shape) if size > 1), 0)
        if whole.shape[dim] != num_rows:
            raise self._refuse(name, num_rows)
        rows = rows_of(whole.data, ranges, dim)
        if isinstance(whole, nn.Parameter):
            set_weight(owner, last, rows)
        else:
            setattr(owner, last, rows)

    def _refuse(self, name: str, num_rows: int) -> UnsupportedModel:
        kind = type(self.part).__name__
        return UnsupportedModel(
            self.model_type,
            f"the {name} of their {kind} is not divided among ranks: it is no layer or weight of "
            f"{num_rows} elements",
        )
