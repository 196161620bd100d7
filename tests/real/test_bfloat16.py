"""SmolLM2 as it is served by default: in bfloat16."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from quire.models.loading.dtype_choice import cpu_has_fast_bfloat16
from tests.e2e.server_process import ServerProcess, server_process
from tests.long import rest_is_long
from tests.real import crowd
from tests.real.crowd import Answer
from tests.real.models import real_folder
from tests.real.texts import prompts

pytestmark = pytest.mark.timeout(900)
"""Where cores are shared with other tests, the first test of a server waits for minutes."""
FEW, MANY = 16, 50
"""Prompts: in every run, and in `make long`."""
NUM_SCORED = 6
"""Answers that are scored: an even number, since each is held against another prompt too."""
NUM_LIKELY = 10
"""The likeliest tokens of a position, among which one is chosen."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(str(real_folder("smollm2")), *crowd.TIGHT) as running:
        yield running


@pytest.fixture(scope="module", params=rest_is_long([FEW], [FEW, MANY]))
def asked(request: pytest.FixtureRequest) -> list[str]:
    return prompts(request.param)


@pytest.fixture(scope="module")
def alone(server: ServerProcess, asked: list[str]) -> list[Answer]:
    return crowd.answers_alone(server, asked)


def test_default_settings_start_and_answer(server: ServerProcess) -> None:
    assert "Paris" in crowd.completion(server, "The capital of France is").text
    dtype = "bfloat16" if cpu_has_fast_bfloat16() else "float32"
    assert server.client.get("/v1/server_info").json()["facts"]["dtype"] == dtype


def test_texts_in_company_equal_those_alone(
    server: ServerProcess, asked: list[str], alone: list[Answer]
) -> None:
    swapped, hits = server.metrics(crowd.SWAPPED, crowd.HITS)
    found = crowd.answers_in_company(server, asked, seed=1)
    assert crowd.others(found, alone) == []
    after_swapped, after_hits = server.metrics(crowd.SWAPPED, crowd.HITS)
    assert after_swapped > swapped, "nothing was preempted: the cache is too large"
    assert after_hits > hits, "no prefix was found"


@pytest.mark.long  # the bundled model's do so in every run, tests/engine/restarts
def test_texts_over_a_restart_equal_those_alone(
    server: ServerProcess, asked: list[str], alone: list[Answer]
) -> None:
    restarts = server.metric(crowd.RESTARTS)
    found = crowd.answers_in_company(server, asked, seed=2, kill=True)
    assert crowd.others(found, alone) == []
    assert server.metric(crowd.RESTARTS) == restarts + 1


@pytest.fixture(scope="module")
def references() -> list[LlamaForCausalLM]:
    """transformers in float32 and in bfloat16."""
    folder = real_folder("smollm2")
    return [
        LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    ]


def logits_of(model: LlamaForCausalLM, prompt_ids: tuple[int, ...], token_ids: Tensor) -> Tensor:
    """[num_tokens, vocab_size] the logits by which each token of an answer is chosen."""
    ids = torch.cat([torch.tensor(prompt_ids), token_ids])[None]
    with torch.inference_mode():
        logits: Tensor = model(ids, logits_to_keep=len(token_ids) + 1).logits
    return logits[0, :-1].float()


def lag(logits: Tensor, token_ids: Tensor) -> float:
    """The most by which a token of an answer is behind the likeliest."""
    chosen = logits.gather(-1, token_ids[:, None])[:, 0]
    return float((logits.max(-1).values - chosen).max())


def noise(exact: Tensor, rounded: Tensor) -> float:
    """The most by which rounding moves two of the likeliest tokens against each other."""
    likely = exact.topk(NUM_LIKELY).indices
    error = (rounded - exact).gather(-1, likely)
    return float((error.max(-1).values - error.min(-1).values).max())


def test_tokens_are_the_likeliest_within_the_noise_of_bfloat16(
    alone: list[Answer], references: list[LlamaForCausalLM]
) -> None:
    """The noise is that of transformers in bfloat16; ours is another rounding of the same size."""
    lags, planted, noises = [], [], []
    scored = alone[:: len(alone) // NUM_SCORED][:NUM_SCORED]
    for each, other in zip(scored, reversed(scored), strict=True):
        tokens = torch.tensor(each.token_ids)
        exact, rounded = (logits_of(model, each.prompt_ids, tokens) for model in references)
        lags.append(lag(exact, tokens))
        noises.append(noise(exact, rounded))
        others = torch.tensor(other.token_ids)
        planted.append(lag(logits_of(references[0], each.prompt_ids, others), others))
    bound = 2 * max(noises)
    assert max(lags) <= bound
    assert min(planted) > bound, "an answer to another prompt is told from one to this"
