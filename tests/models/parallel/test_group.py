"""Collectives give every rank the same, and a rank that is lost is told."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.parallel.group import RankGroup, join_group
from quire.models.parallel.ranks import RankLost
from quire.models.parallel.sharding import part_sizes
from tests.models.parallel.rank_processes import in_threads, leave_group, lone_store

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sum_is_the_same_everywhere(size: int, dtype: torch.dtype) -> None:
    parts = [(torch.arange(12).view(3, 4) + rank).to(dtype) for rank in range(size)]

    def job(group: RankGroup) -> Tensor:
        with torch.inference_mode():
            return group.sum(parts[group.rank].clone().T)

    for found in in_threads(size, job):
        assert torch.equal(found, sum(parts[1:], parts[0]).T)


@given(
    size=st.integers(1, 4),
    count=st.integers(1, 9),
    rows=st.lists(st.integers(0, 3), min_size=1, max_size=2),
)
def test_gathered_parts_are_the_whole(size: int, count: int, rows: list[int]) -> None:
    """Also where a rank has nothing, and where there are no rows."""
    whole = torch.randn(*rows, count)
    sizes = part_sizes(count, size)
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1

    def job(group: RankGroup) -> Tensor:
        with torch.inference_mode():
            return group.gather(torch.split(whole, list(sizes), dim=-1)[group.rank], sizes)

    assert all(torch.equal(found, whole) for found in in_threads(size, job))


def test_a_broadcast_is_what_its_source_has() -> None:
    def job(group: RankGroup) -> Tensor:
        return group.broadcast(torch.tensor([group.rank]), source=1)

    assert in_threads(3, job) == [torch.tensor([1])] * 3


@pytest.mark.parametrize("against", [None, 0, 2])
def test_all_agree_if_nobody_is_against(against: int | None) -> None:
    agreed = in_threads(3, lambda group: group.all_agree(group.rank != against))
    assert agreed == [against is None] * 3


def test_a_rank_that_left_is_told() -> None:
    def job(group: RankGroup) -> str:
        if group.rank == 0:
            leave_group(group)
            return "left"
        with pytest.raises(RankLost, match="rank 1 of 2"):
            group.sum(torch.ones(2))
        return "told"

    assert in_threads(2, job) == ["left", "told"]


def test_ranks_that_never_come_are_told() -> None:
    with pytest.raises(RankLost, match="rank 0 of 2"):
        join_group(0, 2, lone_store(), torch.device("cpu"), timeout_s=0.2)
