"""Joins the files of a model that llama.cpp's `gguf-split` cut into parts: the first has all that
is said of the model, each its tensors.

Parts are found by their names alone, NAME-00001-of-00003.gguf, as llama.cpp finds them.
"""

from dataclasses import replace
from pathlib import Path

from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.header import GgufHeader, GgufTensor, read_header
from quire.models.loading.gguf.place import MAX_PARTS, WEIGHTS, PartName, part_of
from quire.models.loading.gguf.reading import shown

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"


def read_model(path: Path) -> GgufHeader:
    """Read the heads of a file and, if it is the first of several parts, of the others: the tensors
    are those of all. Raises CheckpointError for a part that is missing or is of another model."""
    first = Fields(read_header(path))
    num_parts = first.whole(COUNT, 1) or 1
    if num_parts == 1:
        return first.header
    if num_parts > MAX_PARTS:
        raise first.refusal(f"{COUNT} is {num_parts:,}, must be at most {MAX_PARTS:,}")
    files = _files(first, num_parts)
    tensors: dict[str, GgufTensor] = {}
    for number, file in enumerate(files):
        part = first if number == 0 else Fields(read_header(file))
        _check(first, part, number, num_parts)
        for tensor in part.header.tensors:
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise part.refusal(f"its tensor {shown(tensor.name)} is in {other.path.name} too")
    stated = first.whole(TENSORS, len(tensors))
    if stated != len(tensors):
        raise first.refusal(
            f"its {num_parts} parts would hold {stated:,} tensors and hold {len(tensors):,}: they "
            "are not of one model"
        )
    return replace(first.header, tensors=tuple(tensors.values()))


def part_files(header: GgufHeader) -> list[Path]:
    """Return the files of a model that was read, the first part first."""
    return list(dict.fromkeys((header.path, *(each.path for each in header.tensors))))


def _files(first: Fields, num_parts: int) -> list[Path]:
    """Return the paths of all parts, by the name of the first."""
    path = first.path
    if path.name == WEIGHTS:
        links = PartName(path.stem, 1, num_parts).all()
        return [path, *(path.with_name(each) for each in links[1:])]
    named = part_of(path)
    if named is None:
        raise first.refusal(
            f"it is one of {num_parts} parts, which are found by their names: call it "
            f"{PartName(path.stem, 1, num_parts).other(1)}, and the others likewise"
        )
    if named.num_parts != num_parts:
        raise first.refusal(
            f"its name says that it is one of {named.num_parts:,}, and {COUNT} is {num_parts:,}"
        )
    if named.number != 1:
        raise first.refusal(f"give the first part, {named.other(1)}")
    files = [path.with_name(named.other(i)) for i in range(1, num_parts + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise first.refusal(
            f"it is one of {num_parts:,} parts, of which {len(missing):,} are not beside it: "
            f"{', '.join(missing[:3])}"
        )
    return files


def _check(first: Fields, part: Fields, number: int, num_parts: int) -> None:
    """Raise CheckpointError for a part that does not say that it is this one of the model."""
    count, stated = part.whole(COUNT, None), part.whole(NUMBER, None)
    if count != num_parts or stated != number:
        raise part.refusal(
            f"it must be part {number + 1} of {num_parts}, and says {NUMBER} {stated} and {COUNT} "
            f"{count}"
        )
    num_tensors = part.whole(TENSORS, None)
    if num_tensors != first.whole(TENSORS, None):
        raise part.refusal(f"{TENSORS} is {num_tensors}, and is not that of {first.path.name}")
