"""Models in several files: served by the first or by their folder, and refused where a part is
missing or another's."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils._paths import filter_repo_objects

from quire.models.config import CheckpointError
from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.loading.gguf.weights import read_weights
from quire.models.loading.weight_files import read_headers
from quire.models.weights.lazy_weight import widened
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.loading.gguf.writer import write_model
from tests.models.loading.hostile.gguf_parts import RawTensor, number, taken_apart

NUM_PARTS = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_model(save_checkpoint(SERVED["qwen3"], folder / "model"), folder / "m.gguf", "qwen3")
    return folder / "m.gguf"


@pytest.fixture
def first(whole: Path, tmp_path: Path) -> Path:
    """The first of three parts in a folder of their own."""
    folder = tmp_path / "parts"
    folder.mkdir()
    return cut(whole, folder)[0]


def cut(whole: Path, folder: Path) -> list[Path]:
    """Cut a file as `gguf-split` does."""
    parts = taken_apart(whole.read_bytes())
    values, tensors, content = parts.values, parts.tensors, parts.content
    ends = [*(each.offset for each in tensors[1:]), len(content)]
    each_part = -(-len(tensors) // NUM_PARTS)
    files = []
    for part in range(NUM_PARTS):
        chosen = range(part * each_part, min((part + 1) * each_part, len(tensors)))
        begin = tensors[chosen[0]].offset
        parts.values = list(values) if part == 0 else []
        parts.put("split.no", 2, number(2, part))
        parts.put("split.count", 2, number(2, NUM_PARTS))
        parts.put("split.tensors.count", 5, number(5, len(tensors)))
        parts.tensors = [tensors[i]._replace(offset=tensors[i].offset - begin) for i in chosen]
        parts.content = content[begin : ends[chosen[-1]]]
        files.append(folder / f"m-{part + 1:05}-of-{NUM_PARTS:05}.gguf")
        files[-1].write_bytes(parts.written())
    return files


def found(model: Path | str) -> Path:
    return locate(ModelSource(str(model)), lambda phase, done, total: None)


def test_all_parts_are_the_whole_model(first: Path, whole: Path) -> None:
    stand_in = found(first)
    assert found(first.parent) == stand_in == found(stand_in)
    expected = read_weights(whole, torch.float32)
    weights = read_weights(stand_in / "weights.gguf", torch.float32)
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert torch.equal(widened(weight), widened(expected[name])), name
    assert set(read_headers(stand_in)) == set(read_headers(found(whole)))


def test_a_part_that_changes_makes_another_model(first: Path) -> None:
    before = found(first)
    last = first.with_name("m-00003-of-00003.gguf")
    last.write_bytes(last.read_bytes() + bytes(32))
    assert found(first) != before


def rename(first: Path) -> Path:
    return first.rename(first.with_name("model.gguf"))


def miscount(first: Path) -> Path:
    return first.rename(first.with_name("m-00001-of-00002.gguf"))


def name_the_second(first: Path) -> Path:
    return first.with_name("m-00002-of-00003.gguf")


def leave_out(first: Path) -> Path:
    first.with_name("m-00002-of-00003.gguf").unlink()
    return first


def mix_up(first: Path) -> Path:
    shutil.copy(first.with_name("m-00003-of-00003.gguf"), first.with_name("m-00002-of-00003.gguf"))
    return first


def change(first: Path, key: str, value: int) -> Path:
    second = first.with_name("m-00002-of-00003.gguf")
    parts = taken_apart(second.read_bytes())
    kind = 5 if key == "split.tensors.count" else 2
    parts.put(key, kind, number(kind, value))
    second.write_bytes(parts.written())
    return first


def repeat(first: Path) -> Path:
    second = first.with_name("m-00002-of-00003.gguf")
    parts, other = (taken_apart(each.read_bytes()) for each in (second, first))
    parts.tensors[0] = parts.tensors[0]._replace(name=other.tensors[0].name)
    second.write_bytes(parts.written())
    return first


def lose(first: Path) -> Path:
    second = first.with_name("m-00002-of-00003.gguf")
    parts = taken_apart(second.read_bytes())
    gone: RawTensor = parts.tensors.pop()
    assert gone.name
    second.write_bytes(parts.written())
    return first


def claim_many(first: Path) -> Path:
    parts = taken_apart(first.read_bytes())
    parts.put("split.count", 10, number(10, 1 << 62))
    first.write_bytes(parts.written())
    return first.rename(first.with_name("weights.gguf"))


FAULTS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "another name": ("one of 3 parts, which are found by their names: call it model-00001", rename),
    "another number in the name": ("says that it is one of 2, and split.count", miscount),
    "the second": (
        "give the first part, m-00001-of-00003",
        name_the_second,
    ),
    "missing": ("1 are not beside it: m-00002-of-00003.gguf", leave_out),
    "one for another": ("must be part 2 of 3, and says split.no 2", mix_up),
    "another count": ("split.count 4", lambda first: change(first, "split.count", 4)),
    "of another model": (
        "is not that of m-00001-of-00003.gguf",
        lambda first: change(first, "split.tensors.count", 7),
    ),
    "a tensor twice": ("is in m-00001-of-00003.gguf too", repeat),
    "too few tensors": ("they are not of one model", lose),
    "more parts than names": ("must be at most 99,999", claim_many),
}


@pytest.mark.parametrize(("why", "plant"), FAULTS.values(), ids=FAULTS)
def test_what_is_no_model_is_told_in_one_line(
    why: str, plant: Callable[[Path], Path], first: Path
) -> None:
    file = plant(first)
    with pytest.raises(CheckpointError, match=why) as refusal:
        read_weights(file, torch.float32)
    assert "\n" not in str(refusal.value)


def test_a_folder_of_two_models_is_ambiguous(first: Path, whole: Path) -> None:
    shutil.copy(whole, first.parent)
    with pytest.raises(CheckpointError, match=r"give the path of one of m-00001.*, m\.gguf"):
        found(first.parent)


def test_all_parts_are_fetched_of_the_hub_from_any_folder(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = first.parent.rename(first.parent.with_name("Q4.fp16.x"))
    files = [f"{folder.name}/{path.name}" for path in sorted(folder.iterdir())]
    asked: list[str] = []

    def download(
        name: str, *, allow_patterns: list[str], ignore_patterns: list[str], **options: object
    ) -> str:
        asked.append(name)
        asked.extend(
            filter_repo_objects(
                [*files, "config.json", "Q4.fp16.x/other.gguf"],
                allow_patterns=allow_patterns,
                ignore_patterns=ignore_patterns,
            )
        )
        return str(folder.parent)

    monkeypatch.setattr("quire.models.loading.hub.snapshot_download", download)
    assert found(f"some/model:{files[0]}") == found(folder / first.name)
    assert asked == ["some/model", *files]
