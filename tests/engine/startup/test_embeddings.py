"""How a model's embeddings are made: as asked for, else as sentence-transformers' files say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quire.engine.config import PoolingName
from quire.engine.startup.embedding.embeddings import embedding_facts
from quire.models.config import CheckpointError, LayerFacts, ModelFacts
from quire.scheduler.request import PoolingKind

LAYER = LayerFacts(0, 2, 12, 12, scale=1.0)
MODEL = ModelFacts("llama", (LAYER,), 100, 512, (), "float32", 4, hidden_size=48)
TYPE = "sentence_transformers.models."
OLD = {"pooling_mode_cls_token": False, "word_embedding_dimension": 48}


def write(folder: Path, files: dict[str, object]) -> Path:
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


def modules(*names: str) -> list[dict[str, object]]:
    return [
        {"idx": index, "path": f"{index}_{name}" if index else "", "type": TYPE + name}
        for index, name in enumerate(names)
    ]


def test_a_plain_causal_model_pools_its_last_token(tmp_path: Path) -> None:
    facts = embedding_facts(tmp_path, PoolingName.AUTO, MODEL, 512)
    assert (facts.pooling, facts.is_normalized, facts.why_not) == (PoolingKind.LAST, True, "")
    assert (facts.size, facts.max_len) == (48, 512)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({**OLD, "pooling_mode_mean_tokens": True}, PoolingKind.MEAN),
        ({**OLD, "pooling_mode_lasttoken": True}, PoolingKind.LAST),
        ({"pooling_mode": "mean"}, PoolingKind.MEAN),
        ({"pooling_mode": "lasttoken"}, PoolingKind.LAST),
    ],
)
def test_the_files_say_how(tmp_path: Path, config: object, kind: PoolingKind) -> None:
    listed = modules("Transformer", "Pooling")
    files = {"modules.json": listed, "1_Pooling/config.json": config}
    folder = write(tmp_path, {**files, "sentence_bert_config.json": {"max_seq_length": 40}})
    facts = embedding_facts(folder, PoolingName.AUTO, MODEL, 512)
    assert (facts.pooling, facts.why_not, facts.max_len) == (kind, "", 40)
    assert not facts.is_normalized
    write(tmp_path, {"modules.json": modules("Transformer", "Pooling", "Normalize")})
    assert embedding_facts(folder, PoolingName.AUTO, MODEL, 512).is_normalized


def test_what_is_asked_for_comes_first(tmp_path: Path) -> None:
    folder = write(tmp_path, {"1_Pooling/config.json": {"pooling_mode": "mean"}})
    assert embedding_facts(folder, PoolingName.LAST, MODEL, 512).pooling is PoolingKind.LAST


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"modules.json": modules("Transformer", "Pooling", "Dense")}, "Dense"),
        ({"1_Pooling/config.json": {**OLD, "pooling_mode_max_tokens": True}}, "max_tokens"),
        ({"1_Pooling/config.json": {"pooling_mode": "weightedmean"}}, "weightedmean"),
        (
            {
                "1_Pooling/config.json": {
                    "pooling_mode_mean_tokens": True,
                    "pooling_mode_lasttoken": True,
                }
            },
            "mean_tokens, pooling_mode_lasttoken",
        ),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True}}, "cls"),
        ({"sentence_bert_config.json": {"do_lower_case": True}}, "lower case"),
        ({"modules.json": modules("Transformer", "Pooling")}, "no configuration"),
    ],
)
def test_what_cannot_be_computed_is_told(
    tmp_path: Path, files: dict[str, object], said: str
) -> None:
    facts = embedding_facts(write(tmp_path, files), PoolingName.AUTO, MODEL, 512)
    assert said in facts.why_not


def test_cls_of_a_causal_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--pooling is cls"):
        embedding_facts(tmp_path, PoolingName.CLS, MODEL, 512)


def test_a_model_without_states_says_so(tmp_path: Path) -> None:
    facts = replace(MODEL, hidden_size=0)
    assert "do not show" in embedding_facts(tmp_path, PoolingName.AUTO, facts, 512).why_not


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"modules\.json cannot be read"):
        embedding_facts(tmp_path, PoolingName.AUTO, MODEL, 512)
