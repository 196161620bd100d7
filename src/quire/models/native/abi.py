"""Reads common/abi.h: the structures and functions of the C++ library, as ctypes has them.

The library holds as text what it was compiled with. Python takes from that text how to call it, and
compares it with the header that lies here: a library that was built from another is refused.
"""

import ctypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HEADER = Path(__file__).with_name("common") / "abi.h"
CType = type[
    ctypes.Structure
    | ctypes.c_bool
    | ctypes.c_double
    | ctypes.c_int
    | ctypes.c_int64
    | ctypes.c_void_p
]
SCALARS: dict[str, CType] = {
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
}


class AbiMismatch(Exception):
    """The library was built from another header. The message says what they declare differently."""


class Signature(NamedTuple):
    """The C types of a function's result, where None is void, and of its arguments.

    For a pointer to a structure ctypes takes the structure itself too.
    """

    result: CType | None
    arguments: Sequence[type]


class Abi(NamedTuple):
    """The structures and functions that a library exports.

    structs: the structures by name. An instance refuses fields that it does not have.
    signatures: the functions by name, without the instruction set.
    """

    structs: Mapping[str, type[ctypes.Structure]]
    signatures: Mapping[str, Signature]


def read_abi(library: ctypes.CDLL) -> Abi:
    """Read the ABI that the library was compiled with.

    Raises AttributeError if the library has none, AbiMismatch if HEADER declares another, and
    OSError if HEADER is missing.
    """
    library.quire_abi.restype = ctypes.c_char_p
    library.quire_struct_sizes.restype = ctypes.POINTER(ctypes.c_int64)
    built = _declarations(library.quire_abi().decode())
    here = _declarations(HEADER.read_text(encoding="utf-8"))
    if built != here:
        names = sorted({found.name for found in set(built) ^ set(here)})
        raise AbiMismatch(f"it was built from another {HEADER.name}: {', '.join(names)}")
    abi = _build(built)
    for size, struct in zip(library.quire_struct_sizes(), abi.structs.values(), strict=False):
        if size != ctypes.sizeof(struct):
            raise AbiMismatch(f"{struct.__name__} has {size} bytes, not {ctypes.sizeof(struct)}")
    return abi


class _Declaration(NamedTuple):
    """A structure, whose result is empty, or a function; `body` are its fields or arguments."""

    result: str
    name: str
    body: str


def _declarations(text: str) -> list[_Declaration]:
    """Return what is declared, in its order, without comments and needless spaces."""
    words = " ".join(re.sub("//.*", "", text).split())
    plain = re.sub(r" ?([(),;*]) ?", r"\1", words)
    found = re.findall(r"QUIRE_(?:STRUCT\(|FUNCTION\((\w+),)(\w+),\(?([^()]*)\)", plain)
    return [_Declaration(*parts) for parts in found]


def _build(declarations: Iterable[_Declaration]) -> Abi:
    structs: dict[str, type[ctypes.Structure]] = {}
    signatures: dict[str, Signature] = {}
    for found in declarations:
        if found.result:
            result = None if found.result == "void" else SCALARS[found.result]
            arguments = [
                _argument(type_name, structs) if is_pointer else SCALARS[type_name]
                for _, type_name, is_pointer in _variables(found.body.split(","))
            ]
            signatures[found.name] = Signature(result, arguments)
        else:
            fields = [
                (name, ctypes.c_void_p if is_pointer else (SCALARS | structs)[type_name])
                for name, type_name, is_pointer in _variables(found.body.rstrip(";").split(";"))
            ]
            structs[found.name] = _structure(found.name, fields)
    return Abi(structs, signatures)


def _argument(pointed: str, structs: Mapping[str, type[ctypes.Structure]]) -> type:
    return ctypes.POINTER(structs[pointed]) if pointed in structs else ctypes.c_void_p


def _variables(declarations: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield for each variable its name, the name of its type, and whether it points to that."""
    for declaration in declarations:
        words = declaration.removeprefix("const ").replace("*", " *")
        type_name, _, declarators = words.partition(" ")
        for declarator in declarators.split(","):
            yield declarator.lstrip(" *"), type_name, "*" in declarator


def _structure(name: str, fields: Sequence[tuple[str, CType]]) -> type[ctypes.Structure]:
    class Struct(ctypes.Structure):
        __slots__ = ()
        _fields_ = fields

    Struct.__name__ = name
    return Struct
