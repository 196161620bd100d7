"""Heads of GGUF files: what the library writes is read, and what no file may say is refused in one
line."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.models.config import CheckpointError
from quire.models.loading.gguf.ggml_types import GGML_TYPES
from quire.models.loading.gguf.header import read_header
from tests.models.loading.gguf.writer import refusal_of, write

NAME = "blk.0.attn_q.weight"
OTHER = "blk.0.ffn_up.weight"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small file with a value of each type and two tensors."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -5)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -60)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -4)
    writer.add_float32("a.f32", 0.5)
    writer.add_uint64("a.u64", 1 << 60)
    writer.add_int64("a.i64", -(1 << 60))
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", val=True)
    writer.add_string("a.string", "größer")
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.texts", ["one", "", "drei\u2581"])
    writer.add_tensor(NAME, np.arange(64, dtype=np.float32).reshape(2, 32))
    blocks = gguf.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(OTHER, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    write(writer)
    return path


def test_all_values_and_tensors_are_read(file: Path) -> None:
    header = read_header(file)
    found = {key: value for key, value in header.metadata.items() if key.startswith("a.")}
    assert list(found.pop("a.texts")) == ["one", "", "drei\u2581"]  # type: ignore[arg-type]
    assert found.pop("a.numbers").tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert found == {
        "a.u8": 200,
        "a.i8": -5,
        "a.u16": 60000,
        "a.i16": -60,
        "a.u32": 4_000_000_000,
        "a.i32": -4,
        "a.f32": 0.5,
        "a.u64": 1 << 60,
        "a.i64": -(1 << 60),
        "a.f64": 0.1,
        "a.bool": True,
        "a.string": "größer",
    }
    tensors = {tensor.name: tensor for tensor in header.tensors}
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        NAME: (2, 32),
        OTHER: (4, 64),
    }
    content = file.read_bytes()
    plain, blocks = tensors[NAME], tensors[OTHER]
    numbers = np.frombuffer(content, np.float32, 64, plain.start)
    assert (numbers == np.arange(64)).all()
    assert (plain.num_bytes, blocks.num_bytes) == (256, 4 * 2 * 34)
    assert blocks.start + blocks.num_bytes <= len(content)


def test_the_types_are_those_of_the_library() -> None:
    known = {each.id: (each.block_size, each.block_bytes) for each in GGML_TYPES.values()}
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    # The library counts a scale and a sum of float32 for Q8_1, ggml two halves; none stores it.
    assert known == theirs | {9: (32, 36)}
    assert all(GGML_TYPES[each].name == gguf.GGMLQuantizationType(each).name for each in known)


def patch(content: bytes, at: int, fmt: str, value: int) -> bytes:
    changed = bytearray(content)
    struct.pack_into(fmt, changed, at, value)
    return bytes(changed)


def info_at(content: bytes, name: str) -> int:
    """Return where a tensor's dimensions begin: their number, then each, the type, the place."""
    return content.index(name.encode()) + len(name)


Change = Callable[[bytes], bytes]
FAULTS: dict[str, tuple[str, Change]] = {
    "empty": ("it is empty", lambda c: b""),
    "other bytes": ("does not begin with GGUF", lambda c: b"\x80\x02" + c),
    "version 1": ("version 1, must be one of", lambda c: patch(c, 4, "<I", 1)),
    "big-endian": ("are big-endian", lambda c: patch(c, 4, ">I", 3)),
    "many tensors": ("tensors, more than it has", lambda c: patch(c, 8, "<Q", 1 << 63)),
    "many values": ("values of metadata, more than", lambda c: patch(c, 16, "<Q", 1 << 40)),
    "a long string": ("bytes too early", lambda c: patch(c, 24, "<Q", 1 << 62)),
    "a key twice": ("the key 'a.i8' twice", lambda c: c.replace(b"a.u8", b"a.i8")),
    "a type of none": (
        "type 77, which is none",
        lambda c: patch(c, c.index(b"a.u8") + 4, "<I", 77),
    ),
    "an array of arrays": (
        "holds arrays, which none may",
        lambda c: patch(c, c.index(b"a.numbers") + 9 + 4, "<I", 9),
    ),
    "an array beyond the file": (
        "bytes too early",
        lambda c: patch(c, c.index(b"a.numbers") + 9 + 8, "<Q", 1 << 61),
    ),
    "strings beyond the file": (
        "more than the file has bytes for",
        lambda c: patch(c, c.index(b"a.texts") + 7 + 8, "<Q", 1 << 61),
    ),
    "a string of an array beyond the file": (
        "end beyond the file",
        lambda c: patch(c, c.index(b"a.texts") + 7 + 16, "<Q", (1 << 64) - 1),
    ),
    "an array of no strings, cut behind": (
        "bytes too early",
        lambda c: patch(c, c.index(b"a.texts") + 7 + 8, "<Q", 0)[: c.index(b"a.texts") + 23],
    ),
    "no UTF-8": ("is not UTF-8", lambda c: c.replace(b"a.string", b"a.str\xffng")),
    "alignment of none": (
        "general.alignment is",
        lambda c: with_alignment(c, 24),
    ),
    "no dimensions": (
        "has 0 dimensions, must be",
        lambda c: patch(c, info_at(c, NAME), "<I", 0),
    ),
    "many dimensions": (
        "has 4,294,967,295 dimensions",
        lambda c: patch(c, info_at(c, NAME), "<I", (1 << 32) - 1),
    ),
    "a size of 0": ("and none 0", lambda c: patch(c, info_at(c, NAME) + 4, "<Q", 0)),
    "no whole blocks": (
        "must be a multiple of 32",
        lambda c: patch(c, info_at(c, OTHER) + 4, "<Q", 65),
    ),
    "sizes that overflow": (
        "it was cut short",
        lambda c: patch(c, info_at(c, NAME) + 4, "<Q", 1 << 63),
    ),
    "a type that ggml lacks": (
        "the type 99, which ggml",
        lambda c: patch(c, info_at(c, NAME) + 20, "<I", 99),
    ),
    "an odd place": (
        "no multiple of 32",
        lambda c: patch(c, info_at(c, OTHER) + 24, "<Q", 257),
    ),
    "one within another": (
        "within 'blk.0.attn_q.weight'",
        lambda c: patch(c, info_at(c, OTHER) + 24, "<Q", 224),
    ),
    "a place beyond the file": (
        "it was cut short",
        lambda c: patch(c, info_at(c, OTHER) + 24, "<Q", 1 << 62),
    ),
    "a tensor twice": (
        "the tensor 'blk.0.attn_q.weight' twice",
        lambda c: c.replace(OTHER.encode(), NAME.encode()),
    ),
    "cut short": ("it was cut short, fetch it again", lambda c: c[:-100]),
    "cut in its head": ("bytes too early", lambda c: c[:300]),
}


def with_alignment(content: bytes, alignment: int) -> bytes:
    """Put a value before all others."""
    key = b"general.alignment"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, alignment)
    (num_pairs,) = struct.unpack_from("<Q", content, 16)
    return patch(content[:24] + pair + content[24:], 16, "<Q", num_pairs + 1)


@pytest.mark.parametrize(("why", "change"), FAULTS.values(), ids=FAULTS)
def test_what_no_file_may_say_is_refused_in_one_line(why: str, change: Change, file: Path) -> None:
    file.write_bytes(change(file.read_bytes()))
    found = refusal_of(file)
    assert why in found and "\n" not in found and str(file) in found


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "none.gguf", tmp_path / "pipe.gguf"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_header(path)


@given(data=st.data())
def test_no_change_of_a_file_makes_another_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nor a read beyond it, which Python's views would tell."""
    folder = tmp_path_factory.getbasetemp()
    original = folder / "original.gguf"
    if not original.exists():
        _write_small(original)
    content = bytearray(original.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 8))
        kind = data.draw(st.sampled_from(("byte", "count", "cut")))
        if kind == "byte":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "count":
            value = data.draw(st.sampled_from((0, 1, (1 << 31), (1 << 63), (1 << 64) - 1)))
            struct.pack_into("<Q", content, at, value)
        else:
            del content[max(at, 16) :]
            break
        if len(content) <= 8:
            break
    changed = folder / "changed.gguf"
    changed.write_bytes(content)
    refusal_of(changed)


def _write_small(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("a.texts", ["one", "two"])
    writer.add_array("a.numbers", [1.5, 2.5])
    writer.add_tensor(NAME, np.zeros((2, 32), np.float32))
    write(writer)
