"""Divides the weights of a loaded model among ranks, in place: each keeps its share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from quire.models.config import LayerFacts, UnsupportedModel
from quire.models.hf import attention_modules
from quire.models.parallel.linears import (
    GatheredLinear,
    SplittingLinear,
    SummedOutput,
    VocabParallelEmbedding,
)
from quire.models.parallel.plan import ShardPlan, check_divides
from quire.models.parallel.ranks import Ranks
from quire.models.parallel.recurrent_sharding import shard_recurrent
from quire.models.parallel.styles import Style
from quire.models.parallel.weight_parts import keep_inputs, keep_outputs, rows_of, set_weight
from quire.models.recurrent.families.registry import family_of
from quire.models.weights.lazy_weight import narrow

HEAD_NUMBERS = ("num_heads", "num_attention_heads", "num_key_value_heads", "num_kv_heads")
"""Attributes of attention modules that count heads."""


def shard_module(module: nn.Module, plan: ShardPlan, ranks: Ranks) -> None:
    """Keep of each weight that `plan` divides this rank's share.

    Raises UnsupportedModel for a part that cannot be divided as the plan says, and NotDivisible
    where its size does not divide.
    """
    for name, recurrent in plan.recurrent.items():
        shard_recurrent(module.get_submodule(name), recurrent, plan.model_type, ranks)
    division = _Division(module, plan.model_type, ranks)
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name in sorted(plan.styles, key=lambda name: -name.count(".")):
        if name in parameters:
            division.divide_parameter(name, plan.styles[name])
        else:
            division.divide_module(name, plan.styles[name])
    if plan.divides_heads:
        _count_own_heads(module, ranks.size)


@dataclass(frozen=True, slots=True)
class Share:
    """The shard of a model for one rank. `layers` are those of the whole model, if known."""

    plan: ShardPlan
    ranks: Ranks
    layers: Mapping[int, LayerFacts]

    def keep(self, module: nn.Module) -> None:
        """Divide the weights of the whole model, as `shard_module` does."""
        shard_module(module, self.plan, self.ranks)

    def check(self, layers: Sequence[LayerFacts]) -> None:
        """Raise UnsupportedModel unless a rank's layers, by their index, attend as the whole ones
        do, each with its share of the heads."""
        num_ways = self.ranks.size if self.plan.divides_heads else 1
        for index, whole in self.layers.items():
            wanted = replace(whole, num_kv_heads=whole.num_kv_heads // num_ways)
            found = layers[whole.index]
            if found != wanted:
                raise UnsupportedModel(
                    self.plan.model_type,
                    f"divided among {self.ranks.size} ranks, layer {index} attends otherwise: "
                    f"{found} for {wanted}",
                )


def part_sizes(count: int, num_ranks: int) -> tuple[int, ...]:
    """Return how many of `count` elements each rank has; they differ by one at most."""
    return tuple(count // num_ranks + (rank < count % num_ranks) for rank in range(num_ranks))


def _count_own_heads(module: nn.Module, num_ranks: int) -> None:
    """Let attention modules that count heads count those that they have left. Recurrent modules
    count theirs by themselves."""
    for _, attention in attention_modules(module):
        if family_of(attention) is not None:
            continue
        for name in HEAD_NUMBERS:
            count = getattr(attention, name, None)
            if isinstance(count, int):
                setattr(attention, name, count // num_ranks)


@dataclass(frozen=True, slots=True)
class _Division:
    """One division of a module's weights. `rows` are parts of weights by the `id` of the whole: one
    that several modules share is divided once."""

    module: nn.Module
    model_type: str
    ranks: Ranks
    rows: dict[int, nn.Parameter] = field(default_factory=dict)

    def divide_parameter(self, name: str, style: Style) -> None:
        """Divide a parameter that is no linear layer's, such as one of all experts."""
        parent, _, last = name.rpartition(".")
        whole = self.module.get_parameter(name).data
        is_packed = style in (Style.PACKED_COLUMNS, Style.PACKED_ROWS)
        if style in (Style.ROWS, Style.PACKED_ROWS):
            dim = whole.dim() - 1
        elif style in (Style.COLUMNS, Style.PACKED_COLUMNS):
            dim = max(whole.dim() - 2, 0)
        else:
            raise self._refuse(name, "a parameter", style)
        size = self._even_size(name, whole.shape[dim] // 2 if is_packed else whole.shape[dim])
        rows = rows_of(whole, self._own(size, 2 if is_packed else 1), dim)
        set_weight(self.module.get_submodule(parent), last, rows)

    def divide_module(self, name: str, style: Style) -> None:
        part = self.module.get_submodule(name)
        if style is Style.EXPERTS:
            self.module.set_submodule(name, SummedOutput(part, self.ranks))
            return
        if style is Style.EMBEDDING:
            self._divide_embedding(name, part)
            return
        if type(part) is not nn.Linear:
            raise self._refuse(name, f"a {type(part).__name__}", style)
        match style:
            case Style.COLUMNS:
                self._keep_outputs(part, self._even_sizes(name, part.out_features))
            case Style.PACKED_COLUMNS:
                size = self._even_size(name, part.out_features // 2)
                keep_outputs(part, self._own(size, 2))
            case Style.COLUMNS_GATHERED:
                sizes = part_sizes(part.out_features, self.ranks.size)
                self._keep_outputs(part, sizes)
                self.module.set_submodule(name, GatheredLinear(part, sizes, self.ranks))
            case Style.ROWS | Style.ROWS_OF_WHOLE:
                sizes = self._even_sizes(name, part.in_features)
                (inputs,) = self._own(sizes[0])
                summed = keep_inputs(part, inputs, self.ranks)
                is_whole = style is Style.ROWS_OF_WHOLE
                new = SplittingLinear(summed, sizes, self.ranks) if is_whole else summed
                self.module.set_submodule(name, new)
            case _:
                raise self._refuse(name, "a linear layer", style)

    def _divide_embedding(self, name: str, part: nn.Module) -> None:
        if not isinstance(part, nn.Embedding) or part.max_norm is not None:
            raise self._refuse(name, f"a {type(part).__name__}", Style.EMBEDDING)
        sizes = part_sizes(part.num_embeddings, self.ranks.size)
        part.weight = self._rows(part.get_parameter("weight"), sizes)
        part.num_embeddings, part.padding_idx = sizes[self.ranks.rank], None
        self.module.set_submodule(name, VocabParallelEmbedding(part, sizes, self.ranks))

    def _keep_outputs(self, linear: nn.Linear, sizes: tuple[int, ...]) -> None:
        """Leave `linear` this rank's outputs."""
        linear.weight = self._rows(linear.get_parameter("weight"), sizes)
        if linear.bias is not None:
            linear.bias = self._rows(linear.get_parameter("bias"), sizes)
        linear.out_features = sizes[self.ranks.rank]

    def _rows(self, whole: nn.Parameter, sizes: tuple[int, ...]) -> nn.Parameter:
        """Return this rank's rows of a weight."""
        if id(whole) not in self.rows:
            first, size = sum(sizes[: self.ranks.rank]), sizes[self.ranks.rank]
            rows = narrow(whole.data, 0, first, size)
            self.rows[id(whole)] = nn.Parameter(rows, requires_grad=False)
        return self.rows[id(whole)]

    def _own(self, size: int, num_parts: int = 1) -> list[range]:
        """Return this rank's `size` elements of each of equal parts."""
        firsts = [(each * self.ranks.size + self.ranks.rank) * size for each in range(num_parts)]
        return [range(first, first + size) for first in firsts]

    def _even_sizes(self, name: str, count: int) -> tuple[int, ...]:
        return (self._even_size(name, count),) * self.ranks.size

    def _even_size(self, name: str, count: int) -> int:
        check_divides(self.model_type, count, f"elements of {name}", self.ranks.size)
        return count // self.ranks.size

    def _refuse(self, name: str, what: str, style: Style) -> UnsupportedModel:
        why = f"their {name} is {what}, which is not divided among ranks as {style.value!r}"
        return UnsupportedModel(self.model_type, why)
