"""The folders that stand for GGUF files: made once, found again, and what has none is told."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

from quire.models.config import CheckpointError
from quire.models.loading.checkpoint import ModelSource, locate, locate_config
from tests.models.loading.gguf.writer import Scalar, Vocabulary, add_field, add_vocabulary, write

FIELDS: Mapping[str, Scalar] = {
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "tokenizer.chat_template": "{{ messages }}",
}
TOKENS = ["a", "b", "<|im_end|>", "</s>", "<s>"]
KINDS: Mapping[str, int | list[int]] = {
    "token_type": [1, 1, 3, 1, 3],
    "bos_token_id": 4,
    "eos_token_id": 1,
}


def write_file(
    file: Path, fields: Mapping[str, Scalar] | None = None, architecture: str = "llama"
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in {**FIELDS, **(fields or {})}.items():
        add_field(writer, key, value)
    add_vocabulary(writer, Vocabulary("gpt2", TOKENS, KINDS))
    writer.add_tensor("token_embd.weight", np.zeros((5, 32), np.float16))
    write(writer)
    return file


def found(model: Path | str) -> Path:
    return locate(ModelSource(str(model)), lambda phase, done, total: None)


def test_it_is_made_once_for_a_file_and_anew_for_another(tmp_path: Path, hf_home: Path) -> None:
    file = write_file(tmp_path / "small.gguf")
    folder = found(file)
    assert folder.is_relative_to(hf_home) and folder.name.startswith("small-")
    made_s = (folder / "config.json").stat().st_mtime_ns
    assert found(file) == folder == found(folder) == locate_config(ModelSource(str(file)))
    assert (folder / "config.json").stat().st_mtime_ns == made_s
    assert (folder / "weights.gguf").samefile(file)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing is left over"
    os.utime(file, ns=(1, 1))
    assert found(file) != folder


def test_it_holds_what_the_file_tells(tmp_path: Path) -> None:
    folder = found(write_file(tmp_path / "small.gguf"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["vocab_size"], config["head_dim"]) == ("llama", 5, 16)
    assert config["dtype"] == "float16" and config["tie_word_embeddings"]
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == "{{ messages }}"
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    # Its own end, then the control token that ends answers; "</s>" is a word of texts here.
    assert (generation["eos_token_id"], generation["bos_token_id"]) == ([1, 2], 4)


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    file = write_file(tmp_path / "model" / "small.gguf")
    assert found(file.parent) == found(file)
    write_file(file.parent / "other.GGUF")
    with pytest.raises(CheckpointError, match=r"several GGUF files: give the path of one of"):
        found(file.parent)


def test_a_file_of_the_hub_is_fetched_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_file(tmp_path / "snapshot" / "small-Q8_0.gguf")
    asked: list[object] = []

    def download(name: str, **options: object) -> str:
        asked.extend((name, options["allow_patterns"], options["revision"]))
        return str(file.parent)

    monkeypatch.setattr("quire.models.loading.hub.snapshot_download", download)
    assert found("some/model-GGUF:small-Q8_0.gguf") == found(file)
    assert asked == ["some/model-GGUF", ["small-Q8_0.gguf"], "main"]
    with pytest.raises(CheckpointError, match=r"holds no file none\.gguf on the hub"):
        found("some/model-GGUF:none.gguf")


def test_where_it_cannot_be_written_is_told(tmp_path: Path, hf_home: Path) -> None:
    file = write_file(tmp_path / "small.gguf")
    hf_home.write_text("a file", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"cannot be written, where .* set HF_HOME to"):
        found(file)


REFUSED: dict[str, tuple[str, Mapping[str, Scalar], str]] = {
    "another architecture": (
        "mamba",
        {},
        "of the architecture 'mamba' are not read, only of ernie4_5",
    ),
    "an adapter": ("llama", {"general.type": "adapter"}, "no model but a part of one ('adapter')"),
    "a part of several": ("llama", {"split.count": 3}, "one of 3 parts, which are found by their"),
    "experts": ("qwen3", {"qwen3.expert_count": 8}, "it has 8 experts, qwen3 is read without"),
    "more experts than there are": (
        "llama",
        {"llama.expert_count": 8, "llama.expert_used_count": 9},
        "llama.expert_used_count is 9, of 8 experts",
    ),
    "more layers than tensors": (
        "llama",
        {"llama.block_count": 1 << 31},
        "it has 1 tensors for 2,147,483,648 layers",
    ),
    "a rotation of none": (
        "llama",
        {"llama.rope.freq_base": 0.0},
        "llama.rope.freq_base is 0.0, must be above 0",
    ),
    "no layers": ("llama", {"llama.block_count": 0}, "no llama.block_count of at least 1"),
    "a number that is text": (
        "llama",
        {"llama.embedding_length": "many"},
        "llama.embedding_length is of type str, must be a whole number",
    ),
    "a scaling of its own": (
        "llama",
        {"llama.rope.scaling.type": "palimpsest"},
        "llama.rope.scaling.type 'palimpsest' is not known",
    ),
    "a scaling without a factor": (
        "llama",
        {"llama.rope.scaling.type": "linear"},
        "it has no llama.rope.scaling.factor",
    ),
}


@pytest.mark.parametrize(("architecture", "fields", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_served_is_told_in_one_line(
    architecture: str, fields: Mapping[str, Scalar], why: str, tmp_path: Path
) -> None:
    file = write_file(tmp_path / "small.gguf", fields, architecture)
    with pytest.raises(CheckpointError) as refusal:
        found(file)
    line = str(refusal.value)
    assert why in line and "\n" not in line and str(file) in line
