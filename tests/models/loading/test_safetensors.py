"""Heads of safetensors files, and indexes over them, that claim what their files do not hold."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quire.models.config import CheckpointError
from quire.models.loading.checks.extent import refuse_more_layers, refuse_more_weights
from quire.models.loading.safetensors.stored_tensors import StoredTensor, files_of
from quire.models.loading.weight_files import read_headers

TENSORS = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.int8)}
WHOLE = "model.safetensors"


def test_all_tensors_are_told(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / WHOLE)
    assert set(read_headers(tmp_path)) == {
        StoredTensor("a", "F32", (2, 3), 24),
        StoredTensor("b", "I8", (4,), 4),
    }


def entry(**more: object) -> Mapping[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **more}


HEADS: dict[str, tuple[str, object]] = {
    "a list": ("its header is no JSON object", []),
    "an entry of none": ("'x' is None, must be an object", {"x": None}),
    "a dtype of none": ("the dtype 'F31', which safetensors has not", {"x": entry(dtype="F31")}),
    "a shape of text": ("has the shape ['2'], must be whole", {"x": entry(shape=["2"])}),
    "a shape below 0": ("has the shape [-1, -2], must be", {"x": entry(shape=[-1, -2])}),
    "a shape that overflows": (
        "is F32 [4294967296, 4294967296], and has 8 bytes",
        {"x": entry(shape=[1 << 32, 1 << 32])},
    ),
    "one place": ("lies at [0], must be two", {"x": entry(data_offsets=[0])}),
    "backwards": ("and has -8 bytes", {"x": entry(data_offsets=[8, 0])}),
    "a hole before": ("'x' begins at 8, must at 0", {"x": entry(data_offsets=[8, 16])}),
    "one within another": ("where 'x' before it ends at 8", {"x": entry(), "y": entry()}),
    "beyond the file": (
        "it has 8 bytes of tensors, must have 16: it was cut short",
        {"x": entry(), "y": entry(data_offsets=[8, 16])},
    ),
    "bytes that are nobody's": ("it has 8 bytes behind its last tensor", {}),
}


@pytest.mark.parametrize(("why", "head"), HEADS.values(), ids=HEADS)
def test_what_no_head_may_say_is_refused_in_one_line(
    why: str, head: object, tmp_path: Path
) -> None:
    text = json.dumps(head).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    (tmp_path / WHOLE).write_bytes(content)
    with pytest.raises(CheckpointError) as refusal:
        read_headers(tmp_path)
    assert why in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_deep_head_is_refused(tmp_path: Path) -> None:
    text = b"[" * 200_000
    (tmp_path / WHOLE).write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError, match="cannot be loaded: maximum recursion depth"):
        read_headers(tmp_path)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match="cannot be loaded: it is no file"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    "place",
    ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "a\0.safetensors", 3, []],
)
def test_an_index_names_files_beside_it_alone(place: object, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors", "b": place}}))
    with pytest.raises(
        CheckpointError, match="places 'b' in .*, must be the name of a safetensors"
    ):
        files_of(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_an_index_without_names_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="it has no weight_map of names to files"):
        files_of(tmp_path)


def test_a_tensor_in_two_files_is_told(tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_file(TENSORS, tmp_path / f"{name}.safetensors")
    with pytest.raises(
        CheckpointError, match=r"y\.safetensors .*: '[ab]' is in x\.safetensors too"
    ):
        read_headers(tmp_path)


def test_a_configuration_of_far_more_than_the_files_hold_is_refused(tmp_path: Path) -> None:
    stored = [StoredTensor("a", "F32", (1 << 20,), 4 << 20), StoredTensor("b", "F32", (8,), 32)]
    refuse_more_layers(tmp_path, 2, stored)
    refuse_more_layers(tmp_path, 10**9, [])
    with pytest.raises(CheckpointError, match="has 3 layers, and its files hold 2 tensors in all"):
        refuse_more_layers(tmp_path, 3, stored)
    with torch.device("meta"):
        fits, beyond = torch.nn.Linear(1 << 10, 1 << 10), torch.nn.Linear(1 << 10, 1 << 12)
    refuse_more_weights(tmp_path, fits, stored)
    refuse_more_weights(tmp_path, beyond, [])
    with pytest.raises(
        CheckpointError, match="describes 4,198,400 weights, and its files hold 1,0"
    ):
        refuse_more_weights(tmp_path, beyond, stored)
