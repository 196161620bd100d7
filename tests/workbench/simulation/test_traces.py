"""Tests of reading traces, and of what is said of a malformed line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.workbench.simulation.traces.azure import read_azure
from quire.workbench.simulation.traces.mooncake import read_mooncake
from quire.workbench.simulation.traces.read import read_trace
from quire.workbench.simulation.traces.shapes import (
    LengthRange,
    TraceShape,
    parse_shape,
    requests_of,
)
from quire.workbench.simulation.traces.trace_error import TraceError
from quire.workbench.simulation.traces.traced_request import PromptPart, assigned

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:15:46.6805900,374,44"
LINE = {"timestamp": 1500, "input_length": 1000, "output_length": 5, "hash_ids": [0, 9]}


def test_a_trace_of_azure_is_read_in_the_order_of_arrival() -> None:
    later = "2023-11-16 18:15:47.9305900,12,3"
    first, second = read_azure([HEAD, later, GOOD, ""])
    assert (first.sent_s, first.num_prompt_tokens, first.num_output_tokens) == (0.0, 374, 44)
    assert (second.sent_s, second.num_prompt_tokens, second.num_output_tokens) == (1.25, 12, 3)
    assert first.parts[0].content != second.parts[0].content


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "line 1: the columns are , must be TIMESTAMP,ContextTokens,GeneratedTokens"),
        (["time,a,b"], "line 1: the columns are time,a,b, must be"),
        ([HEAD, GOOD, "now,3,4"], "line 3: TIMESTAMP is 'now', must be a time such as"),
        ([HEAD, "2023-11-16 18:15:46,x,4"], "line 2: ContextTokens is 'x', must be a whole"),
        ([HEAD, "2023-11-16 18:15:46,3,0"], "line 2: GeneratedTokens is '0', must be a whole"),
        ([HEAD, GOOD, "", "2023-11-16,3"], "line 4: it has 2 columns, must be 3"),
    ],
)
def test_a_malformed_line_of_azure_is_told(lines: list[str], told: str) -> None:
    with pytest.raises(TraceError) as error:
        read_azure(lines)
    assert str(error.value).startswith(told)


def test_a_trace_of_mooncake_shares_what_its_hashes_share() -> None:
    other = {**LINE, "timestamp": 0, "input_length": 513, "hash_ids": [0, 4]}
    first, second = read_mooncake([json.dumps(LINE), "", json.dumps(other)])
    assert (first.sent_s, second.sent_s) == (0.0, 1.5)
    assert [each.num_tokens for each in first.parts] == [512, 1]
    assert [each.num_tokens for each in second.parts] == [512, 488]
    mine, others = (each.new_request(3).prompt_token_ids for each in (first, second))
    assert mine[:512] == others[:512] and mine[512] != others[512]
    assert (len(mine), len(others)) == (513, 1000)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2: Input data was truncated"),
        (json.dumps({**LINE, "input_length": 1025}), "line 2: hash_ids has 2 ids, must be 3"),
        (json.dumps({**LINE, "output_length": 0}), "line 2: output_length is 0, must be a whole"),
        (json.dumps({**LINE, "timestamp": -1}), "line 2: timestamp and hash_ids must be 0 or"),
        (json.dumps({"timestamp": 0}), "line 2: Object missing required field `input_length`"),
        (json.dumps({**LINE, "hash_ids": [0, "a"]}), "line 2: Expected `int`, got `str`"),
    ],
)
def test_a_malformed_line_of_mooncake_is_told(line: str, told: str) -> None:
    with pytest.raises(TraceError) as error:
        read_mooncake([json.dumps(LINE), line])
    assert str(error.value).startswith(told)


def test_a_shape_is_read() -> None:
    shape = parse_shape("gamma:rate=2.5,cv=3,requests=7,prompt=100-900,output=5,shared=64")
    assert shape == TraceShape(2.5, 3.0, 0, 7, 64, LengthRange(100, 900), LengthRange(5, 5))
    assert parse_shape("closed:concurrency=32").concurrency == 32


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("poisson:", "poisson needs rate, as in poisson:rate=4"),
        ("gamma:rate=1", "gamma needs cv"),
        ("poisson:rate=0", "rate is '0', must be a number above 0"),
        ("poisson:rate=1,cv=2", "poisson has no 'cv', but rate, requests"),
        ("closed:concurrency=x", "concurrency is 'x', must be a whole number"),
        ("closed:concurrency=1,prompt=9-3", "prompt is '9-3', must be a number of tokens"),
    ],
)
def test_a_malformed_shape_is_told(text: str, told: str) -> None:
    with pytest.raises(TraceError) as error:
        parse_shape(text)
    assert str(error.value).startswith(told)


@given(st.integers(0, 5), st.floats(0.5, 3))
def test_a_shape_has_the_rate_that_it_says(seed: int, cv: float) -> None:
    shape = TraceShape(rate=4.0, cv=cv, requests=3000, prompt=LengthRange(3, 9))
    requests = requests_of(shape, seed)
    assert requests == requests_of(shape, seed)
    assert requests[-1].sent_s == pytest.approx(3000 / 4, rel=0.25)
    assert {each.num_prompt_tokens for each in requests} == set(range(3, 10))


@given(st.integers(0, 99), st.lists(st.integers(0, 1 << 41), unique=True, min_size=2))
def test_other_contents_begin_with_other_tokens(seed: int, contents: list[int]) -> None:
    firsts = [PromptPart(each % (1 << 31), 1).token_ids(seed)[0] for each in set(contents)]
    distinct = {each % (1 << 31) for each in contents}
    assert len(set(firsts)) == len(distinct)


def test_tenants_and_priorities_are_drawn() -> None:
    requests = requests_of(TraceShape(requests=200), 0)
    drawn = list(assigned(requests, num_tenants=3, num_priorities=2, seed=1))
    assert {each.tenant for each in drawn} == {"tenant-0", "tenant-1", "tenant-2"}
    assert {each.priority for each in drawn} == {0, 1}
    assert list(assigned(requests, num_tenants=1, num_priorities=1, seed=1)) == requests


def test_a_file_of_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a file that ends in .csv, .jsonl, .flight"):
        read_trace(str(tmp_path / "x.txt"), 0)
