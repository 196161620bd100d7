"""Files that fit neither transformers nor each other are told in a sentence that names the folder,
before the weights are read where that can be.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.models.config import CheckpointError, ModelDtype
from quire.models.loading.preview import look_ahead
from quire.models.target import Target
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import load
from tests.models.families import DENSE, Family

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(Family("llama", fields=DENSE), tmp_path_factory.mktemp("llama"))


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def edit_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def look(folder: Path) -> None:
    look_ahead(folder, Target(ModelDtype.AUTO, CPU), trust_remote_code=False)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_attention_heads": 7}, "is not a multiple of the number of attention heads"),
        ({"max_position_embeddings": "many"}, "'max_position_embeddings' expected int, got str"),
        ({"eos_token_id": "x"}, "'eos_token_id' with value 'x'"),
    ],
)
def test_a_configuration_that_makes_no_sense(
    copy: Path, fields: dict[str, object], why: str
) -> None:
    edit_json(copy / "config.json", **fields)
    with pytest.raises(CheckpointError, match=why) as refusal:
        look(copy)
    assert str(refusal.value).startswith(f"{copy}: its configuration cannot be used: ")
    assert "\n" not in str(refusal.value)


def test_weights_of_other_shapes_than_the_configuration_has(copy: Path) -> None:
    edit_json(copy / "config.json", vocab_size=91)
    with pytest.raises(CheckpointError, match=r"2 of the weights do not fit .*\[101, 48\] in the"):
        load(copy)


def test_weights_that_are_not_numbers_are_named(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="its weights hold NaN: model.norm.weight") as refusal:
        load(copy)
    assert str(copy) in str(refusal.value)


def test_weights_in_fp8_of_which_the_configuration_is_silent_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"holds 1 weights in FP8 \({name}\), which Quire"):
        look(copy)


@pytest.mark.parametrize("stated", ["x", [[1]], 1.5, [True]])
def test_end_tokens_that_are_no_ids_are_refused_before_weights_are_read(
    copy: Path, stated: object
) -> None:
    edit_json(copy / "generation_config.json", eos_token_id=stated)
    with pytest.raises(
        CheckpointError, match=r"generation_config\.json: eos_token_id is .*must be"
    ):
        look(copy)


@pytest.mark.parametrize(("stated", "known"), [(999999, ()), ([5, -1], (5,))])
def test_end_tokens_beyond_the_vocabulary_are_told_and_left_out(
    copy: Path, stated: object, known: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    edit_json(copy / "generation_config.json", eos_token_id=stated)
    look(copy)
    assert load(copy).facts.eos_token_ids == known
    assert "beyond the vocabulary of 101" in caplog.text
