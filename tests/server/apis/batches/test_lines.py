"""Batch files: what is a line, and what is wrong with one that is not."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.batches.lines import LineLimits, parse_line, read_index, read_place
from tests.profiles import cases
from tests.server.apis.batches.batch_files import CHAT, encode, line

LIMITS = LineLimits(max_line_bytes=1000)
IDS = st.lists(st.text(min_size=1, max_size=20), unique=True, min_size=1, max_size=8)


@given(IDS, st.sampled_from((b"\n", b"\r\n", b"\n\n", b"\n \n")), st.booleans())
@cases(50)
def test_every_line_is_found_where_it_lies(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], between: bytes, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("batch") / "in.jsonl"
    lines = [encode([line(each, prompt=each)]).rstrip() for each in ids]
    path.write_bytes(between.join(lines) + (between if ends else b""))
    index = read_index(path, LIMITS)
    assert not index.faults
    assert [place.custom_id for place in index.places] == ids
    for place, custom_id in zip(index.places, ids, strict=True):
        found = parse_line(read_place(path, place), LIMITS)
        assert found.custom_id == custom_id
        assert msgspec.json.decode(found.body) == {"prompt": custom_id}


@pytest.mark.parametrize(
    ("raw", "code", "param", "told"),
    [
        (b"{", "invalid_json_line", None, "not valid JSON"),
        (b"[]", "invalid_value", None, "Expected `object`"),
        (b"{}", "invalid_value", None, "`custom_id`"),
        (encode([line("a") | {"priority": 1}]), "invalid_value", None, "`priority`"),
        (encode([line("")]), "invalid_value", "custom_id", "1 to 512"),
        (encode([line("a") | {"method": "GET"}]), "invalid_value", "method", "'POST'"),
        (encode([line("a", "/v1/models")]), "invalid_value", "url", CHAT),
        (encode([line("a") | {"body": []}]), "invalid_value", "body", "JSON object"),
        (encode([line("a", prompt="x" * 1000)]), "line_too_large", None, "--max-body-bytes"),
        (encode([line("first")]), "duplicate_custom_id", "custom_id", "line 1"),
    ],
)
def test_a_fault_names_its_line_and_field(
    tmp_path: Path, raw: bytes, code: str, param: str | None, told: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(encode([line("first")]) + raw.rstrip() + b"\n" + encode([line("last")]))
    index = read_index(path, LIMITS)
    (fault,) = index.faults
    assert (fault.line, fault.code, fault.param) == (2, code, param)
    assert told in fault.message and fault.message.startswith("Line 2 ")
    assert [place.custom_id for place in index.places] == ["first", "last"]


def test_an_empty_file_and_one_of_too_many_lines_are_faulty(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n")
    assert [fault.code for fault in read_index(path, LIMITS).faults] == ["empty_file"]
    path.write_bytes(encode(line(str(number)) for number in range(4)))
    few = LIMITS._replace(max_lines=2)
    assert [fault.code for fault in read_index(path, few).faults] == ["too_many_lines"]
