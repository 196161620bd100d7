"""Servers of which nothing is pinned."""

from collections.abc import Iterator

import pytest

from quire.scheduler.reasons import Reason
from tests.server.apis.prefixes.asking import listed
from tests.server.served import Served, plain_config, serving


@pytest.fixture
def served(served: Served) -> Iterator[Served]:
    """The server of the module, of which nothing is pinned before and after."""
    yield served
    served.engine.may_step.set()
    served.engine.refuses, served.engine.pins = None, Reason.PINNED
    for each in listed(served):
        served.client.delete(f"/v1/prefixes/{each['id']}").raise_for_status()


@pytest.fixture
def fresh() -> Iterator[Served]:
    with serving(plain_config()) as served:
        yield served
