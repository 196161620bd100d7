"""W3C trace context in the heads of requests and answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.http.trace_context import TraceContext, trace_context
from tests.server.served import Served

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def read(*values: bytes, begins: bool = False, state: bytes = b"") -> TraceContext | None:
    headers = [(b"traceparent", value) for value in values] + [(b"tracestate", state)]
    return trace_context(headers, lambda size: bytes(range(1, size + 1)), begins=begins)


def hexadecimal(size: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=size, max_size=size).filter(any).map(bytes.hex)


@given(hexadecimal(16), hexadecimal(8), st.integers(0, 255))
def test_every_valid_traceparent_is_taken(trace_id: str, parent_id: str, flags: int) -> None:
    found = read(f"00-{trace_id}-{parent_id}-{flags:02x}".encode())
    assert found is not None
    assert (found.trace_id, found.parent_id) == (trace_id, parent_id)
    assert found.is_sampled == bool(flags % 2)
    again = read(found.header.encode())
    assert again is not None
    assert again[:2] == (trace_id, found.span_id)


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        "",
    ],
)
def test_what_is_not_valid_is_as_if_it_were_not_there(value: str) -> None:
    assert read(value.encode()) is None
    begun = read(value.encode(), begins=True)
    assert begun is not None and begun.parent_id is None and begun.is_sampled


@given(st.binary())
def test_any_bytes_will_do(value: bytes) -> None:
    read(value, state=value)


def test_of_two_none_is_taken_and_of_a_later_version_what_is_known() -> None:
    value = f"00-{TRACE}-{PARENT}-01".encode()
    assert read(value, value) is None
    assert read(f"cc-{TRACE}-{PARENT}-01-more".encode()) is not None


def test_a_long_state_is_left_out() -> None:
    value = f"00-{TRACE}-{PARENT}-01".encode()
    short, long = read(value, state=b"a=1"), read(value, state=b"a=" + b"1" * 600)
    assert short is not None and long is not None
    assert (short.state, long.state) == ("a=1", "")


def test_the_answer_has_the_trace_of_the_request(served: Served) -> None:
    sent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    for path in ("/v1/models", "/v1/made-up"):
        told = served.client.get(path, headers=sent).headers["traceparent"]
        assert told.startswith(f"00-{TRACE}-") and told.endswith("-01") and PARENT not in told
    assert "traceparent" not in served.client.get("/v1/models").headers
