"""Gemma 3 270M, base: windows in five of six layers, one KV head of 256, a large vocabulary."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.models.config import ModelDtype
from tests.e2e.server_process import ServerProcess, server_process
from tests.real import crowd
from tests.real.models import real_folder
from tests.real.texts import passages

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

NUM_BLOCKS = "500"
"""Blocks of six layer groups: two requests of the longest kind."""


@pytest.fixture(scope="module", params=[ModelDtype.AUTO, ModelDtype.FLOAT32])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    flags = (*crowd.TIGHT, "--num-gpu-blocks-override", NUM_BLOCKS, "--dtype", request.param)
    with server_process(str(real_folder("gemma3")), *flags) as running:
        yield running


def texts() -> list[str]:
    """The first halves of passages: some of them are longer than a window."""
    return [text[: len(text) // 2] for text in passages(maths=16, code=10, plays=6)]


@pytest.fixture(scope="module")
def alone(server: ServerProcess) -> list[crowd.Answer]:
    return crowd.answers_alone(server, texts(), crowd.completion)


def test_default_settings_start_and_answer(server: ServerProcess) -> None:
    assert "France" in crowd.completion(server, "The capital of France is").text


@pytest.mark.parametrize("kill", [False, True])
def test_texts_in_company_equal_those_alone(
    server: ServerProcess, alone: list[crowd.Answer], kill: bool
) -> None:
    found = crowd.answers_in_company(server, texts(), seed=1, kill=kill, send=crowd.completion)
    assert crowd.others(found, alone) == []


def test_each_token_is_the_likeliest_of_transformers(
    server: ServerProcess, alone: list[crowd.Answer], request: pytest.FixtureRequest
) -> None:
    if "float32" not in request.node.callspec.id:
        pytest.skip("bfloat16 may round a tie otherwise than transformers")
    model = AutoModelForCausalLM.from_pretrained(real_folder("gemma3"), dtype=torch.float32)
    for each in alone:
        ids = torch.tensor([[*each.prompt_ids, *each.token_ids]])
        with torch.inference_mode():
            logits = model(ids, logits_to_keep=len(each.token_ids) + 1).logits
        assert tuple(logits[0, :-1].argmax(-1).tolist()) == each.token_ids
