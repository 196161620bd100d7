"""Divided modules compute what they do whole."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quire.models.config import NotDivisible, UnsupportedModel
from quire.models.parallel.group import RankGroup
from quire.models.parallel.plan import ShardPlan
from quire.models.parallel.ranks import WeightlessRanks
from quire.models.parallel.sharding import shard_module
from quire.models.parallel.styles import Style
from quire.models.weights.lazy_weight import HalfWeight, LazyWeight, widened
from tests.models.parallel.rank_processes import in_threads

PAIRS = {
    "columns, then rows": (Style.COLUMNS, Style.ROWS),
    "columns gathered, then whole": (Style.COLUMNS_GATHERED, None),
    "whole, then rows": (None, Style.ROWS_OF_WHOLE),
    "columns gathered, then rows": (Style.COLUMNS_GATHERED, Style.ROWS_OF_WHOLE),
}


def two_layers(sizes: tuple[int, int, int], *, is_lazy: bool = False) -> nn.Sequential:
    """Linear layers of whole numbers, of which sums are exact, and biases that are not small."""
    first, between, last = sizes
    layers = nn.Sequential(nn.Linear(first, between), nn.Linear(between, last))
    generator = torch.Generator().manual_seed(between)
    for layer in layers:
        for name, parameter in list(layer.named_parameters()):
            numbers = torch.randint(-9, 9, parameter.shape, generator=generator)
            kept = numbers.to(torch.bfloat16)
            is_kept = is_lazy and name == "weight"
            data = LazyWeight(HalfWeight(kept)) if is_kept else kept.float()
            setattr(layer, name, nn.Parameter(data, requires_grad=False))
    return layers


def plan_of(styles: tuple[Style | None, Style | None]) -> ShardPlan:
    named = {str(index): style for index, style in enumerate(styles) if style is not None}
    return ShardPlan("two", named, divides_heads=False)


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
@settings(max_examples=10)
@given(
    num_ranks=st.integers(1, 3),
    sizes=st.tuples(*[st.integers(1, 3)] * 3),
    num_tokens=st.integers(0, 3),
)
def test_divided_linear_layers_are_the_whole_ones(
    pair: str, is_lazy: bool, num_ranks: int, sizes: tuple[int, int, int], num_tokens: int
) -> None:
    """To the bit, for whole numbers: so each bias is added once."""
    first, between, last = sizes
    sizes = (first, between * num_ranks, last)
    x = torch.randint(-9, 9, (1, num_tokens, first)).float()

    def job(group: RankGroup) -> Tensor:
        layers = two_layers(sizes, is_lazy=is_lazy)
        shard_module(layers, plan_of(PAIRS[pair]), group)
        with torch.inference_mode():
            found: Tensor = layers(x)
        return found

    expected = two_layers(sizes)(x)
    assert all(torch.equal(found, expected) for found in in_threads(num_ranks, job))


@pytest.mark.parametrize("is_lazy", [False, True])
@given(num_ranks=st.integers(1, 3), size=st.integers(1, 3))
def test_gate_and_up_of_one_layer_are_each_divided(
    is_lazy: bool, num_ranks: int, size: int
) -> None:
    whole = two_layers((3, 2 * num_ranks * size, 1))[0]
    weights, biases = (whole.get_parameter(name).chunk(2) for name in ("weight", "bias"))
    for rank in range(num_ranks):
        layers = two_layers((3, 2 * num_ranks * size, 1), is_lazy=is_lazy)
        plan = ShardPlan("one", {"0": Style.PACKED_COLUMNS}, False)
        shard_module(layers, plan, WeightlessRanks(num_ranks, rank))
        own = slice(rank * size, (rank + 1) * size)
        weight, bias = (layers[0].get_parameter(name) for name in ("weight", "bias"))
        assert torch.equal(widened(weight), torch.cat([each[own] for each in weights]))
        assert torch.equal(bias, torch.cat([each[own] for each in biases]))
        assert layers[0].out_features == 2 * size


@given(num_ranks=st.integers(1, 4), count=st.integers(1, 11))
def test_an_output_of_any_size_is_gathered(num_ranks: int, count: int) -> None:
    """As that of a head, whose vocabulary need not divide."""
    x = torch.ones(1, 2, 3)

    def job(group: RankGroup) -> tuple[Tensor, int]:
        layers = two_layers((3, 3, count))
        shard_module(layers, ShardPlan("two", {"1": Style.COLUMNS_GATHERED}, False), group)
        return layers(x), sum(len(weight) for weight in layers[1].parameters()) // 2

    found = in_threads(num_ranks, job)
    expected = two_layers((3, 3, count))(x)
    assert all(torch.equal(each, expected) for each, _ in found)
    sizes = [size for _, size in found]
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1


@given(num_ranks=st.integers(1, 4), ids=st.lists(st.integers(0, 6), max_size=5))
def test_looked_up_rows_are_the_whole_ones(num_ranks: int, ids: list[int]) -> None:
    torch.manual_seed(num_ranks)
    whole = nn.Embedding(7, 4, padding_idx=6).requires_grad_(False)

    def job(group: RankGroup) -> Tensor:
        module = nn.ModuleDict({"embed_tokens": copy.deepcopy(whole)})
        shard_module(module, ShardPlan("one", {"embed_tokens": Style.EMBEDDING}, False), group)
        with torch.inference_mode():
            found: Tensor = module["embed_tokens"](torch.tensor([ids], dtype=torch.int64))
        return found

    expected = whole(torch.tensor([ids], dtype=torch.int64))
    assert all(torch.equal(found, expected) for found in in_threads(num_ranks, job))


@pytest.mark.parametrize("is_divided", [True, False])
def test_a_weight_that_is_tied_is_divided_once(is_divided: bool) -> None:
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = whole = embedding.weight
    styles = {"lm_head": Style.COLUMNS_GATHERED, "embed_tokens": Style.EMBEDDING}
    if not is_divided:
        del styles["embed_tokens"]
    module = nn.ModuleDict({"embed_tokens": embedding, "lm_head": head})
    shard_module(module, ShardPlan("tied", styles, False), WeightlessRanks(2, rank=1))
    assert torch.equal(head.weight, whole[4:])
    assert embedding.weight is (head.weight if is_divided else whole)


@pytest.mark.parametrize("style", [Style.COLUMNS, Style.ROWS, Style.ROWS_OF_WHOLE])
def test_what_does_not_divide_is_refused(style: Style) -> None:
    with pytest.raises(NotDivisible, match="5 elements of 1 do not divide among 2 ranks"):
        shard_module(two_layers((5, 5, 5)), plan_of((None, style)), WeightlessRanks(2))


@pytest.mark.parametrize("part", [lambda: nn.Conv1d(4, 4, 1), lambda: nn.Bilinear(4, 4, 4)])
def test_what_is_no_linear_layer_is_refused(part: Callable[[], nn.Module]) -> None:
    plan = ShardPlan("odd", {"0": Style.COLUMNS}, False)
    with pytest.raises(UnsupportedModel, match="their 0 is a (Conv1d|Bilinear)"):
        shard_module(nn.Sequential(part()), plan, WeightlessRanks(2))
