"""Changes of a folder of safetensors as a stranger could make them: of the bytes and heads of its
files, of the index over them, and of its configuration."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

Head = dict[str, dict[str, Any]]
"""The tensors by name, each with its dtype, shape and data_offsets, or what stands there."""
Mutation = Callable[[Random, Path], None]
NUMBERS = (0, 1, -1, 3, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, 1 << 64, 10**400)
ODD: tuple[object, ...] = (None, "x", [], {}, [[]], True, 1.5, -0.0, 1e308, "1" * 5000, [None])
DTYPES = ("F64", "F16", "I64", "BOOL", "F8_E4M3", "F4", "", "f32", "X" * 5000, None, 3)
SHAPES: tuple[object, ...] = (
    *([1 << 63, 2], [1 << 32] * 2, [], [0], [-1, -1], [1.5], ["1"], [10**400], [1] * 99),
    *(None, "x", [None], {}, 5, [True]),
)
INDEX, CONFIG = "model.safetensors.index.json", "config.json"
OUTSIDE = ("../../etc/passwd", "/etc/passwd", "../outside.safetensors", "/dev/zero", "//etc/passwd")
WITHIN = ("", ".", "..", "none.safetensors", "a\0b", "config.json", "x" * 300, "sub/x.safetensors")


def mutate(seed: int, original: Path, folder: Path) -> str:
    """Write a changed copy of a folder, and return the name of the change that a seed draws."""
    random = Random(seed)
    name = random.choice(sorted(MUTATIONS))
    shutil.copytree(original, folder)
    MUTATIONS[name](random, folder)
    return name


def _file(random: Random, folder: Path) -> Path:
    return random.choice(sorted(folder.glob("*.safetensors")))


def _split(file: Path) -> tuple[Head, bytes]:
    """Return the head and the content of a file."""
    content = file.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _write(file: Path, head: bytes, content: bytes, length: int | None = None) -> None:
    size = len(head) if length is None else length
    file.write_bytes(struct.pack("<Q", size) + head + content)


def _bytes_anywhere(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    changed = bytearray(file.read_bytes())
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] = random.randrange(256)
    file.write_bytes(changed)


def _bits_of_the_head(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    changed = bytearray(file.read_bytes())
    (length,) = struct.unpack_from("<Q", changed)
    for _ in range(random.choice((1, 2, 4))):
        changed[random.randrange(8 + length)] ^= 1 << random.randrange(8)
    file.write_bytes(changed)


def _cut(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    content = file.read_bytes()
    at = random.choice((0, 4, 8, random.randrange(len(content)), len(content) - 1))
    file.write_bytes(content[:at])


def _longer(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    file.write_bytes(file.read_bytes() + random.randbytes(random.choice((1, 64, 4096))))


def _length(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    content = file.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    more = (0, 1, length - 1, length + 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1, 100_000_001)
    file.write_bytes(struct.pack("<Q", random.choice(more)) + content[8:])


def _deep_head(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    _, content = _split(file)
    depth = random.choice((100, 1_000, 100_000, 1_000_000))
    heads = (
        b"[" * depth + b"]" * depth,
        b'{"a":' * depth + b"1" + b"}" * depth,
        b"[" * depth,
        b'{"__metadata__":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
        b'{"x":{"dtype":"F32","shape":' + b"[" * depth + b"]" * depth + b',"data_offsets":[0,0]}}',
        b"1" * depth,
    )
    _write(file, random.choice(heads), content)


def _no_object(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    _, content = _split(file)
    heads = (b"[]", b"null", b"1", b'"x"', b"{}", b"  ", b"\xff\xff", b'{"a":1}', b'{"a":null}')
    _write(file, random.choice((*heads, b'{"a":[1]}', b'{"a":{}}', b"{" * 2, b"NaN")), content)


def _entry(random: Random, folder: Path) -> None:
    """A tensor that is not as its bytes are."""
    file = _file(random, folder)
    head, content = _split(file)
    name = random.choice([each for each in head if each != "__metadata__"])
    entry = head[name]
    kind = random.randrange(7)
    if kind == 0:
        entry["dtype"] = random.choice(DTYPES)
    elif kind == 1:
        entry["shape"] = random.choice(SHAPES)
    elif kind == 2:
        sizes = list(entry["shape"])
        sizes[random.randrange(len(sizes))] = random.choice(NUMBERS)
        entry["shape"] = sizes
    elif kind == 3:
        first, end = entry["data_offsets"]
        places = ([end, first], [first + 4, end + 4], [first, end + 4], [first, end - 4])
        more = ([0, 0], [0, 1 << 63], [-4, 0], [1 << 64, 1 << 65], [0], [0, 1, 2], None, "x", [0.5])
        entry["data_offsets"] = random.choice((*places, *more))
    elif kind == 4:
        other = head[random.choice([each for each in head if each != "__metadata__"])]
        entry["data_offsets"] = other["data_offsets"]
    elif kind == 5:
        entry.pop(random.choice(sorted(entry)))
    else:
        entry["more"] = random.choice(ODD)
    _write(file, json.dumps(head).encode(), content)


def _names(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    head, content = _split(file)
    name = random.choice([each for each in head if each != "__metadata__"])
    entry = head.pop(name)
    new = ("", "x", "../../x", "\ud800", "a\nb", "n" * 100_000, "model.layers.10000000.x.weight")
    head[random.choice((*new, "__metadata__"))] = entry
    _write(file, json.dumps(head).encode(), content)


def _name_twice(random: Random, folder: Path) -> None:
    """A tensor twice in one head, or in two files."""
    files = sorted(folder.glob("*.safetensors"))
    head, content = _split(files[0])
    name = random.choice([each for each in head if each != "__metadata__"])
    if random.random() < 0.5:
        written = json.dumps(head)[:-1] + f", {json.dumps(name)}: {json.dumps(head[name])}}}"
        _write(files[0], written.encode(), content)
        return
    other, rest = _split(files[1])
    entry = head[name]
    first, end = entry["data_offsets"]
    size = len(rest)
    other[name] = {**entry, "data_offsets": [size, size + end - first]}
    _write(files[1], json.dumps(other).encode(), rest + random.randbytes(end - first))


def _many_names(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    head, content = _split(file)
    size = len(content)
    for i in range(random.choice((100, 20_000))):
        head[f"x{i}"] = {"dtype": "F32", "shape": [0], "data_offsets": [size, size]}
    if random.random() < 0.5:
        head["__metadata__"] = {f"k{i}": "v" for i in range(20_000)}
    _write(file, json.dumps(head).encode(), content)


def _metadata(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    head, content = _split(file)
    odd: tuple[Any, ...] = (*ODD, {"format": "tf"}, {"format": 1})
    head["__metadata__"] = random.choice(odd)
    _write(file, json.dumps(head).encode(), content)


def _index_of_places(random: Random, folder: Path) -> None:
    """An index that points out of the folder, or to nothing."""
    index = json.loads((folder / INDEX).read_text())
    name = random.choice(sorted(index["weight_map"]))
    index["weight_map"][name] = random.choice((*OUTSIDE, *WITHIN, *ODD))
    (folder / INDEX).write_text(json.dumps(index))


def _index_of_another_shape(random: Random, folder: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    maps = [f'{{"weight_map": {each}}}' for each in ("1", "[]", "{}", "null", '{"x": []}', deep)]
    (folder / INDEX).write_text(
        random.choice(("", "{", "[]", "null", "{}", "\ufeff{}", deep, *maps))
    )


def _index_of_other_tensors(random: Random, folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    placed = index["weight_map"]
    names = sorted(placed)
    kind = random.randrange(4)
    if kind == 0:
        del placed[random.choice(names)]
    elif kind == 1:
        placed[random.choice(names)] = random.choice(sorted(set(placed.values())))
    elif kind == 2:
        placed["model.layers.99.x.weight"] = placed[names[0]]
    else:
        placed.update({f"x{i}": placed[names[0]] for i in range(50_000)})
    (folder / INDEX).write_text(json.dumps(index))


def _links(random: Random, folder: Path) -> None:
    file = _file(random, folder)
    file.unlink()
    file.symlink_to(random.choice(("/dev/null", "/dev/zero", file.name, "none", str(folder))))


def _left_out(random: Random, folder: Path) -> None:
    random.choice([*sorted(folder.glob("*.safetensors")), folder / INDEX]).unlink()


def _configuration(random: Random, folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(sorted(config))
        config[name] = random.choice((*NUMBERS, *ODD))
    (folder / CONFIG).write_text(json.dumps(config))


def _sizes(random: Random, folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    names = [name for name, value in config.items() if type(value) is int]
    config[random.choice(names)] = random.choice(NUMBERS)
    (folder / CONFIG).write_text(json.dumps(config))


def _configuration_text(random: Random, folder: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = (folder / CONFIG).read_text()
    changed = ("", "{", "[]", "null", deep, '{"a": ' + deep + "}", text[: len(text) // 2], "\0")
    (folder / CONFIG).write_text(random.choice(changed))


MUTATIONS: dict[str, Mutation] = {
    each.__name__[1:]: each
    for each in (
        *(_bytes_anywhere, _bits_of_the_head, _cut, _longer, _length, _deep_head, _no_object),
        *(_entry, _names, _name_twice, _many_names, _metadata, _index_of_places),
        *(_index_of_another_shape, _index_of_other_tensors, _links, _left_out, _configuration),
        *(_sizes, _configuration_text),
    )
}
