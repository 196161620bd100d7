"""Schemas that pydantic writes for its own types are taken, and a value of each can be written."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from re import Pattern
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import jsonschema
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from tests.server.grammars.sampling import grammar_of, taken


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Movie(TypedDict, total=False):
    title: str
    year: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tail: bool


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    children: list["Tree"] = []


TYPES: Mapping[str, tuple[Any, Any]] = {
    "str": (str, "a"),
    "bytes": (bytes, "a"),
    "int": (int, 1),
    "float": (float, 1.5),
    "bool": (bool, True),
    "None": (None, None),
    "Any": (Any, [1]),
    "list": (list[int], [1, 2]),
    "tuple": (tuple[int, str], [1, "a"]),
    "endless tuple": (tuple[int, ...], [1, 2]),
    "set": (set[int], [1, 2]),
    "frozenset": (frozenset[str], ["a", "b"]),
    "set of literals": (set[Literal["a", "b"]], ["b", "a"]),
    "deque": (deque[int], [1]),
    "dict": (dict[str, int], {"a": 1}),
    "dict of patterns": (dict[Annotated[str, Field(pattern="^k")], int], {"k1": 1}),
    "dict of enums": (dict[Colour, int], {"red": 1}),
    "dict of integers": (dict[int, str], {"1": "a"}),
    "dict of dates": (dict[date, str], {"2026-01-02": "a"}),
    "Sequence": (Sequence[int], [1]),
    "Mapping": (Mapping[str, float], {"a": 1.5}),
    "Optional": (int | None, None),
    "Union": (int | str, "a"),
    "Literal": (Literal["a", 1], 1),
    "Enum": (Colour, "red"),
    "IntEnum": (Level, 2),
    "NamedTuple": (Point, [1, 2]),
    "TypedDict": (Movie, {"title": "a", "year": 1}),
    "model": (Cat, {"kind": "cat", "lives": 9}),
    "recursive model": (Tree, {"name": "a", "children": [{"name": "b", "children": []}]}),
    "discriminated": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "dog", "tail": True},
    ),
    "datetime": (datetime, "2026-01-02T03:04:05Z"),
    "date": (date, "2026-01-02"),
    "time": (time, "03:04:05Z"),
    "timedelta": (timedelta, "P1DT2H"),
    "Decimal": (Decimal, 1.5),
    "bounded Decimal": (Annotated[Decimal, Field(max_digits=4, decimal_places=2)], 1.5),
    "UUID": (UUID, "12345678-1234-4234-8234-123456789012"),
    "Path": (Path, "/a"),
    "Pattern": (Pattern[str], "a"),
    "IPv4Address": (IPv4Address, "127.0.0.1"),
    "IPv6Address": (IPv6Address, "::1"),
    "IPv4Network": (IPv4Network, "10.0.0.0/8"),
    "IPvAnyAddress": (pydantic.IPvAnyAddress, "127.0.0.1"),
    "AnyUrl": (pydantic.AnyUrl, "http://a.example/b"),
    "HttpUrl": (pydantic.HttpUrl, "http://a.example/b"),
    "PostgresDsn": (pydantic.PostgresDsn, "postgres://u:p@h:1/d"),
    "FileUrl": (pydantic.FileUrl, "file:///a"),
    "SecretStr": (pydantic.SecretStr, "a"),
    "SecretBytes": (pydantic.SecretBytes, "a"),
    "FilePath": (pydantic.FilePath, "/a"),
    "DirectoryPath": (pydantic.DirectoryPath, "/a"),
    "NewPath": (pydantic.NewPath, "/a"),
    "UUID1": (pydantic.UUID1, "12345678-1234-1234-8234-123456789012"),
    "UUID4": (pydantic.UUID4, "12345678-1234-4234-8234-123456789012"),
    "UUID7": (pydantic.UUID7, "12345678-1234-7234-8234-123456789012"),
    "Base64Bytes": (pydantic.Base64Bytes, "YQ=="),
    "Base64Str": (pydantic.Base64Str, "YQ=="),
    "Base64UrlBytes": (pydantic.Base64UrlBytes, "YQ=="),
    "ByteSize": (pydantic.ByteSize, 10),
    "Json": (pydantic.Json[list[int]], "[1]"),
    "PastDate": (pydantic.PastDate, "2020-01-02"),
    "FutureDatetime": (pydantic.FutureDatetime, "2050-01-02T03:04:05Z"),
    "AwareDatetime": (pydantic.AwareDatetime, "2026-01-02T03:04:05Z"),
    "PositiveInt": (pydantic.PositiveInt, 1),
    "NonNegativeFloat": (pydantic.NonNegativeFloat, 0.5),
    "StrictBool": (pydantic.StrictBool, True),
    "FiniteFloat": (pydantic.FiniteFloat, 1.5),
    "conint": (pydantic.conint(ge=0, lt=9, multiple_of=3), 6),
    "confloat": (pydantic.confloat(gt=0, le=1), 0.5),
    "condecimal": (pydantic.condecimal(gt=Decimal(0)), 0.5),
    "constr": (pydantic.constr(min_length=1, max_length=3, pattern="^a"), "ab"),
    "conbytes": (pydantic.conbytes(max_length=3), "a"),
    "conlist": (pydantic.conlist(int, min_length=1, max_length=2), [1]),
    "conset": (pydantic.conset(int, min_length=1, max_length=2), [1, 2]),
    "confrozenset": (pydantic.confrozenset(str, max_length=2), ["a"]),
    "condate": (pydantic.condate(gt=date(2020, 1, 1)), "2026-01-02"),
    "JsonValue": (pydantic.JsonValue, {"a": [1]}),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_a_type_of_pydantic_is_taken(
    name: str, mode: Literal["validation", "serialization"]
) -> None:
    made, value = TYPES[name]
    schema = TypeAdapter(made).json_schema(mode=mode)
    grammar, _ = grammar_of(json.loads(json.dumps(schema)))
    if jsonschema.Draft202012Validator(schema).is_valid(value):
        assert list(taken(grammar, [value])) == [(value, True)]
    elif mode == "validation":
        pytest.fail(f"{value!r} is no value of {schema}")
