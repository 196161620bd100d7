"""Runs a test on several numbers of threads."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=(1, 2, 5))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
