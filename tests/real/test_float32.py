"""SmolLM2 in float32, token for token beside transformers."""

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.e2e.server_process import ServerProcess, server_process
from tests.real import crowd
from tests.real.crowd import Answer
from tests.real.models import real_folder
from tests.real.texts import prompts

pytestmark = pytest.mark.timeout(900)
"""Where cores are shared with other tests, the first test of a server waits for minutes."""
NUM_PROMPTS = 24
NUM_FORCED = 8
"""The answers that are held against one forward each."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = (*crowd.TIGHT, "--dtype", "float32")
    with server_process(str(real_folder("smollm2")), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    folder = real_folder("smollm2")
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def answers(server: ServerProcess) -> list[Answer]:
    """In company, over blocks that are swapped and prefixes that are found."""
    swapped, hits = server.metrics(crowd.SWAPPED, crowd.HITS)
    found = crowd.answers_in_company(server, prompts(NUM_PROMPTS), seed=1)
    after_swapped, after_hits = server.metrics(crowd.SWAPPED, crowd.HITS)
    assert after_swapped > swapped, "nothing was preempted: the cache is too large"
    assert after_hits > hits, "no prefix was found"
    return found


@pytest.mark.long  # in every run test_gguf.py holds a crowded server in float32 to transformers
def test_each_token_is_the_likeliest_of_transformers(
    answers: list[Answer], reference: LlamaForCausalLM
) -> None:
    """A text is that of greedy `generate` if each of its tokens is the likeliest after those
    before it; one forward of the whole tells that of all its tokens."""
    for each in answers[::2][:NUM_FORCED]:
        ids = torch.tensor([[*each.prompt_ids, *each.token_ids]])
        with torch.inference_mode():
            logits = reference(ids, logits_to_keep=len(each.token_ids) + 1).logits
        assert tuple(logits[0, :-1].argmax(-1).tolist()) == each.token_ids


@pytest.mark.long
@pytest.mark.timeout(900)
def test_texts_are_those_of_generate(answers: list[Answer], reference: LlamaForCausalLM) -> None:
    for each in answers:
        ids = torch.tensor([each.prompt_ids])
        found = reference.generate(  # type: ignore[misc]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=crowd.MAX_TOKENS,
            do_sample=False,
        )
        generated = tuple(found[0, ids.shape[1] :].tolist())
        assert generated[: len(each.token_ids)] == each.token_ids


@pytest.mark.long
def test_texts_over_a_restart_equal_those_before(
    server: ServerProcess, answers: list[Answer]
) -> None:
    restarts = server.metric(crowd.RESTARTS)
    found = crowd.answers_in_company(server, prompts(NUM_PROMPTS), seed=2, kill=True)
    assert crowd.others(found, answers) == []
    assert server.metric(crowd.RESTARTS) == restarts + 1
