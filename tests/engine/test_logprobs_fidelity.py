"""Log probabilities of prompts and of tokens that a request names are those of transformers, in
fp32: prompts in chunks, several requests at once, so few blocks that some are preempted."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.engine.engine import Engine
from quire.scheduler.request import NewRequest, Sampling, Stopping, TokenLogprobs
from quire.scheduler.step import Delta
from tests.engine.test_fidelity import build
from tests.models.reference import NUM_NEW, References, fidelity_prompts, ordinary

FAMILIES = ("llama", "gemma2")
NUM_TOP = 4
NAMED = (90, 3, 41)
CLOSE = 1e-4
"""Sums of fp32 in another order, through all layers."""


def deltas_of(engine: Engine, requests: list[NewRequest]) -> dict[str, list[Delta]]:
    deltas: dict[str, list[Delta]] = {request.id: [] for request in requests}
    for request in requests:
        assert engine.submit(request) is None
    while engine.has_work:
        for delta in engine.step().deltas:
            deltas[delta.request_id].append(delta)
    return deltas


def truth(model: torch.nn.Module, token_ids: list[int]) -> Tensor:
    """The log probabilities [len(token_ids), vocab_size] after each token."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits.double().log_softmax(-1)


def assert_equal(found: TokenLogprobs, row: Tensor) -> None:
    assert found.logprob == pytest.approx(float(row[found.token_id]), abs=CLOSE)
    for token_id, logprob in found.top:
        assert logprob == pytest.approx(float(row[token_id]), abs=CLOSE)
    values = row.topk(NUM_TOP).values
    likeliest = [logprob for _, logprob in found.top[:NUM_TOP]]
    assert likeliest == pytest.approx(values.tolist(), abs=CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_scored_as_by_transformers(family: str, references: References) -> None:
    checkpoint = references.checkpoint(family)
    engine, model = build(checkpoint), ordinary(checkpoint)
    prompts = fidelity_prompts()
    requests = [
        NewRequest(
            str(index),
            tuple(prompt),
            Sampling(temperature=0.0, num_logprobs=None if index % 2 else 0),
            Stopping(NUM_NEW),
            prompt_logprobs=NUM_TOP,
        )
        for index, prompt in enumerate(prompts)
    ]
    deltas = deltas_of(engine, requests)
    assert engine.stats.num_preemptions > 0
    assert engine.stats.num_prefix_hits == 0
    for index, prompt in enumerate(prompts):
        found = [each for delta in deltas[str(index)] for each in delta.prompt_logprobs]
        rows = truth(model, prompt)
        assert [each.token_id for each in found] == prompt[1:]
        for each, row in zip(found, rows, strict=False):
            assert_equal(each, row)
            own = float(row[each.token_id])
            # The token itself is among those above its own log probability less CLOSE.
            least, most = int((row > own + CLOSE).sum()) + 1, int((row > own - CLOSE).sum())
            assert least <= each.rank <= most
    for name in ("first", "cached"):
        (told,) = deltas_of(engine, [replace(requests[2], id=name)]).values()
        assert [each.token_id for delta in told for each in delta.prompt_logprobs] == prompts[2][1:]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_named_tokens_are_scored_as_by_transformers(
    family: str, is_overlapped: bool, references: References
) -> None:
    checkpoint = references.checkpoint(family)
    engine, model = build(checkpoint, is_overlapped=is_overlapped), ordinary(checkpoint)
    prompts = fidelity_prompts()[3:9]
    requests = [
        NewRequest(
            str(index),
            tuple(prompt),
            Sampling(
                temperature=0.7,
                logit_bias=((NAMED[0], 3.0),),
                seed=index,
                num_logprobs=NUM_TOP,
                logprob_token_ids=NAMED if index % 2 else (),
            ),
            Stopping(NUM_NEW),
        )
        for index, prompt in enumerate(prompts)
    ]
    deltas = deltas_of(engine, requests)
    for index, prompt in enumerate(prompts):
        found = [each for delta in deltas[str(index)] for each in delta.logprobs]
        text = [each.token_id for each in found]
        rows = truth(model, prompt + text)[len(prompt) - 1 :]
        assert len(found) == NUM_NEW
        for each, row in zip(found, rows, strict=False):
            assert_equal(each, row)
            named = {token_id for token_id, _ in each.top}
            assert not index % 2 or named >= set(NAMED)
            assert len(each.top) <= NUM_TOP + (len(NAMED) if index % 2 else 0)
