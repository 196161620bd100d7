"""Lends ranks in processes, which take seconds to start."""

from collections.abc import Iterator

import pytest

from tests.models.parallel.rank_processes import RankProcesses


@pytest.fixture(scope="package")
def two_ranks() -> Iterator[RankProcesses]:
    ranks = RankProcesses(2)
    yield ranks
    ranks.close()


@pytest.fixture(scope="package")
def four_ranks() -> Iterator[RankProcesses]:
    ranks = RankProcesses(4)
    yield ranks
    ranks.close()
