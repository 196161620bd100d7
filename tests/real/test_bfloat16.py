"""SmolLM2 as it is served by default: in bfloat16."""

from collections.abc import Iterator

import pytest

from tests.e2e.server_process import ServerProcess, server_process
from tests.real import crowd
from tests.real.crowd import Answer
from tests.real.models import real_folder
from tests.real.texts import prompts

pytestmark = pytest.mark.timeout(900)
"""Where cores are shared with other tests, the first test of a server waits for minutes."""
NUM_PROMPTS = 50


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(str(real_folder("smollm2")), *crowd.TIGHT) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: ServerProcess) -> list[Answer]:
    return crowd.answers_alone(server, prompts(NUM_PROMPTS))


def test_default_settings_start_and_answer(server: ServerProcess) -> None:
    found = crowd.answer(server, "What is the capital of France?")
    assert "Paris" in found.text
    assert server.client.get("/v1/server_info").json()["facts"]["dtype"] == "bfloat16"


def test_texts_in_company_equal_those_alone(server: ServerProcess, alone: list[Answer]) -> None:
    swapped, hits = server.metrics(crowd.SWAPPED, crowd.HITS)
    found = crowd.answers_in_company(server, prompts(NUM_PROMPTS), seed=1)
    assert crowd.others(found, alone) == []
    after_swapped, after_hits = server.metrics(crowd.SWAPPED, crowd.HITS)
    assert after_swapped > swapped, "nothing was preempted: the cache is too large"
    assert after_hits > hits, "no prefix was found"


def test_texts_over_a_restart_equal_those_alone(server: ServerProcess, alone: list[Answer]) -> None:
    restarts = server.metric(crowd.RESTARTS)
    found = crowd.answers_in_company(server, prompts(NUM_PROMPTS), seed=2, kill=True)
    assert crowd.others(found, alone) == []
    assert server.metric(crowd.RESTARTS) == restarts + 1
