"""Recurrent modules that are divided among ranks compute what they do whole, and each rank has its
part of every state."""

import copy
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quire.cache.spec import StateSpec
from quire.cache.states.state_use import NULL_STATE
from quire.models.config import UnsupportedModel
from quire.models.loading import pretrained
from quire.models.parallel.group import RankGroup
from quire.models.parallel.plan import plan_shards
from quire.models.parallel.ranks import WeightlessRanks
from quire.models.parallel.recurrent_sharding import own_rows, own_units, shard_recurrent
from quire.models.parallel.sharding import shard_module
from quire.models.recurrent.division import Span, Units
from quire.models.recurrent.hook import recurrent_layers
from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.lazy_weight import HalfWeight, LazyWeight, OpenedWeight, widened
from tests.models.checkpoints import tiny_config
from tests.models.families import SERVED, Family
from tests.models.parallel.rank_processes import in_threads
from tests.models.recurrent.cuts import make_pieces
from tests.models.recurrent.modules import ModuleSubject, recurrent_module

NUM_ROWS = 7
RECURRENT = [name for name, family in SERVED.items() if "state" in family.attention]
PIECES = make_pieces([[(4, NULL_STATE, 1), (3, 1, 2)]])
MAMBA_2 = SERVED["mamba2"]


def alike(name: str, **fields: object) -> Family:
    return SERVED[name]._replace(fields={**SERVED[name].fields, **fields})


DIVIDED = {
    **{name: (SERVED[name], 2) for name in RECURRENT},
    "mamba2, two ranks in each group": (MAMBA_2, 4),
    "mamba2, one group for all": (alike("mamba2", n_groups=1), 4),
    "bamba, one group for all": (alike("bamba", mamba_n_groups=1), 2),
    "falcon_h1, normed, one group": (
        alike("falcon_h1, normed, then gated", mamba_n_groups=1),
        2,
    ),
    "falcon_h1, one group, then normed": (
        alike("falcon_h1, gated, then normed", mamba_n_groups=1),
        2,
    ),
    "qwen3_5_text, four ranks": (
        alike("qwen3_5_text", linear_num_key_heads=4, linear_num_value_heads=8),
        4,
    ),
    "lfm2, with biases": (alike("lfm2", conv_bias=True), 3),
    "mamba, with biases": (alike("mamba", use_bias=True), 4),
}
WHOLE_ATTENTION = ("kimi_linear", "olmo_hybrid")
NAMES = [name for name in DIVIDED if "text alone" not in name]


@dataclass(frozen=True, slots=True)
class Found:
    """The outputs of a module, those of transformers' own code, and the states."""

    outputs: Tensor
    own: Tensor
    states: Tensor
    spec: StateSpec


@cache
def subject_of(name: str) -> ModuleSubject:
    return recurrent_module(DIVIDED[name][0])


def run(subject: ModuleSubject) -> Found:
    rows = torch.randn(NUM_ROWS, subject.hidden_size, generator=torch.Generator().manual_seed(3))
    states = torch.zeros(3, *subject.state_shape)
    with torch.inference_mode():
        own = subject.part(rows[None])[0]
    return Found(subject.compute((rows,), states, PIECES), own, states, subject.spec)


def share_of(subject: ModuleSubject, group: RankGroup) -> ModuleSubject:
    part = copy.deepcopy(subject.part)
    shard_recurrent(part, subject.family.division(part), "of-a-test", group)
    return ModuleSubject(subject.family, part, subject.family.state(part))


@pytest.mark.parametrize("name", RECURRENT)
def test_a_plan_divides_every_state_and_most_weights(name: str) -> None:
    """What stays whole are norms, routers, convolutions' B and C of groups, and the attention of
    some families."""
    config = tiny_config(SERVED[name])
    module = pretrained.build_without_weights(Path("of-a-test"), config)
    states, num_weights = recurrent_layers(module), num_elements(module)
    plan = plan_shards(module, config.get_text_config(), 2)
    shard_module(module, plan, WeightlessRanks(2))
    parts = recurrent_layers(module)
    assert [layer.index for layer in parts] == [layer.index for layer in states]
    for part, state in zip(parts, states, strict=True):
        assert 2 * part.state.num_bytes == state.state.num_bytes
    assert num_elements(module) < (0.75 if name in WHOLE_ATTENTION else 0.6) * num_weights


def num_elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_ranks_compute_what_the_whole_module_does(name: str) -> None:
    subject, num_ranks = subject_of(name), DIVIDED[name][1]
    whole = run(subject)
    largest = float(whole.outputs.abs().max())
    parts = in_threads(num_ranks, lambda group: run(share_of(subject, group)))
    for part in parts:
        for outputs in (part.outputs, part.own):
            torch.testing.assert_close(outputs, whole.outputs, rtol=1e-4, atol=1e-5 * largest)
    assert_each_has_its_part_of_the_states(parts, whole)


def assert_each_has_its_part_of_the_states(parts: list[Found], whole: Found) -> None:
    last = len(whole.spec.shapes) - 1
    if last:
        matrices = torch.cat([shaped(part, last) for part in parts], 1)
        torch.testing.assert_close(matrices, shaped(whole, last), rtol=1e-4, atol=1e-4)
    channels = shaped(whole, 0).transpose(0, 1).flatten(1)
    for part in parts:
        of_part = shaped(part, 0).transpose(0, 1).flatten(1)
        assert len(of_part) < len(channels)
        distance = (of_part[:, None] - channels).abs().amax(-1).amin(1)
        assert distance.max() < 1e-4, "each channel of a tail is one of the whole"
        assert part.spec.num_bytes < whole.spec.num_bytes


def shaped(found: Found, part: int) -> Tensor:
    """Return a part of all states, [num_states, *shape]."""
    shapes = found.spec.shapes
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return found.states.split_with_sizes(sizes, dim=1)[part].view(-1, *shapes[part])


spans = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.booleans()), min_size=1, max_size=4
)


@given(spans=spans, num_ranks=st.integers(1, 4), num_sharing=st.integers(1, 3))
def test_rows_of_ranks_are_all_rows(
    spans: list[tuple[int, int, bool]], num_ranks: int, num_sharing: int
) -> None:
    """Each row of units that divide is one rank's; each of those that are shared is as many ranks',
    next to each other."""
    made, wanted, size = [], [], num_ranks * num_sharing
    for count, rows, are_shared in spans:
        units = num_ranks if are_shared else count * size
        span = Span(Units(units, "units", are_shared), rows)
        made.append(span)
        wanted.append(num_sharing if are_shared else 1)
    found = [own_rows(made, WeightlessRanks(size, rank)) for rank in range(size)]
    first = 0
    for index, span in enumerate(made):
        owners: list[list[int]] = [[] for _ in range(span.num_rows)]
        for rank in range(size):
            for row in found[rank][index]:
                owners[row - first].append(rank)
        assert all(len(each) == wanted[index] for each in owners)
        assert all(after - before <= 1 for each in owners for before, after in pairwise(each))
        assert sum(owners, []) == sorted(sum(owners, [])) or span.size > 1
        first += span.num_rows


def test_ranks_that_share_units_have_those_of_their_heads() -> None:
    groups = Units(2, "groups", are_shared=True)
    assert [own_units(groups, WeightlessRanks(4, rank)) for rank in range(4)] == [
        range(1),
        range(1),
        range(1, 2),
        range(1, 2),
    ]


@pytest.mark.parametrize("is_grouped", [False, True])
def test_rows_of_a_stored_weight_stay_as_they_are_stored(is_grouped: bool) -> None:
    """Rows of a weight that the file keeps in fewer bits, some of each span."""
    subject = recurrent_module(alike("qwen3_5_text", hidden_size=64))
    linear = subject.part.get_submodule("in_proj_qkv")
    assert isinstance(linear, nn.Linear)
    numbers = torch.randint(-7, 7, linear.weight.shape, dtype=torch.int8)
    if is_grouped:
        scales = torch.rand(len(numbers), numbers.shape[1] // 32).half()
        stored = OpenedWeight(GroupedWeight(numbers, scales, None, 4), torch.float32)
        linear.weight = nn.Parameter(LazyWeight(stored), requires_grad=False)
    else:
        kept = HalfWeight(numbers.to(torch.bfloat16))
        linear.weight = nn.Parameter(LazyWeight(kept), requires_grad=False)
    whole, division = widened(linear.weight.data), subject.family.division(subject.part)
    ranks = WeightlessRanks(2, rank=1)
    shard_recurrent(subject.part, division, "of-a-test", ranks)
    part = linear.weight.data
    assert isinstance(part, LazyWeight)
    assert (part.stored.grouped() is not None) is is_grouped
    rows = [row for span in own_rows(division.rows["in_proj_qkv"], ranks) for row in span]
    assert torch.equal(widened(part), whole[rows])
    assert linear.out_features == len(rows) == len(whole) // 2


@pytest.mark.parametrize("name", ["in_proj", "out_proj", "x_proj", "A_log"])
def test_a_module_that_is_not_as_its_familys_is_refused(name: str) -> None:
    subject = recurrent_module(SERVED["mamba"])
    division = subject.family.division(subject.part)
    odd: nn.Module | nn.Parameter = nn.Linear(5, 5)
    if name == "A_log":
        odd = nn.Parameter(torch.zeros(5))
    setattr(subject.part, name, odd)
    why = rf"of-a-test models .* the {name} of their MambaMixer is not divided among ranks"
    with pytest.raises(UnsupportedModel, match=why):
        shard_recurrent(subject.part, division, "of-a-test", WeightlessRanks(2))
