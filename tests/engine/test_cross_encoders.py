"""Cross-encoders give the scores that transformers' own forward gives, pair by pair."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from quire.models.config import CheckpointError
from quire.scheduler.request import NewRequest, Pooling, PoolingKind, Sampling, Stopping
from tests.engine.test_embedding_fidelity import vectors_of
from tests.engine.test_encoders import ENCODERS, MAX_LEN, build
from tests.models.reference import some_prompts

NAMES = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
CLOSE = 1e-5


def checkpoint(folder: Path, name: str, **fields: object) -> Path:
    torch.manual_seed(5)
    sizes = {**ENCODERS[name], "num_labels": 1, "initializer_range": 0.1, **fields}
    config = AutoConfig.for_model(name, **sizes)
    model = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_scores_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    path, prompts = checkpoint(tmp_path, name), some_prompts(12, MAX_LEN)
    engine, facts = build(path)
    assert facts.embeddings is None
    assert facts.scores is not None and facts.scores.is_sigmoid
    seconds = [len(prompt) // 2 for prompt in prompts]
    requests = [
        NewRequest(
            str(number),
            tuple(prompt),
            Sampling(),
            Stopping(0),
            pooling=Pooling(PoolingKind.CLS, None, False, second),
        )
        for number, (prompt, second) in enumerate(zip(prompts, seconds, strict=True))
    ]
    found = vectors_of(engine, requests)
    model = AutoModelForSequenceClassification.from_pretrained(path, attn_implementation="eager")
    for number, (prompt, second) in enumerate(zip(prompts, seconds, strict=True)):
        types = [int(place >= second) for place in range(len(prompt))]
        has_types = name != "distilbert"
        options = {"token_type_ids": torch.tensor([types])} if has_types else {}
        wanted = model(torch.tensor([prompt]), **options).logits[0].numpy()
        assert found[str(number)].shape == (1,)
        assert np.abs(found[str(number)] - wanted).max() < CLOSE


def test_the_second_text_is_told_apart(tmp_path: Path) -> None:
    engine, _ = build(checkpoint(tmp_path, "bert", initializer_range=0.5))
    new = [
        NewRequest(
            str(second),
            tuple(range(3, 20)),
            Sampling(),
            Stopping(0),
            pooling=Pooling(PoolingKind.CLS, None, False, second),
        )
        for second in (4, 9)
    ]
    scores = vectors_of(engine, new)
    assert abs(float(scores["4"][0] - scores["9"][0])) > 100 * CLOSE


@pytest.mark.parametrize(
    ("fields", "is_sigmoid"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"version": "5"}}, True),
    ],
)
def test_the_activation_is_as_the_configuration_says(
    fields: dict[str, object], is_sigmoid: bool, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, "bert")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))
    _, facts = build(path)
    assert facts.scores is not None and facts.scores.is_sigmoid == is_sigmoid


def test_another_activation_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "bert")
    config = json.loads((path / "config.json").read_text())
    fields = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
    (path / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(CheckpointError, match="Tanh"):
        build(path)


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="judges texts"):
        build(checkpoint(tmp_path, "bert", num_labels=3))
