"""W3C Trace Context: the trace that a request belongs to, as its `traceparent` says, and what the
answer says of it.

Source: https://www.w3.org/TR/trace-context/.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

TRACEPARENT = "traceparent"
MAX_STATE_BYTES = 512
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(rb"[\x20-\x7e]*")
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The place of a request in a trace; ids are hexadecimal.

    parent_id: the client's span; None where the trace begins here.
    span_id: the span of this request.
    state: the client's `tracestate`, which means nothing here and is passed on.
    """

    trace_id: str
    parent_id: str | None
    span_id: str
    is_sampled: bool
    state: str = ""

    @property
    def header(self) -> str:
        """The `traceparent` of the answer."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def trace_context(
    headers: Sequence[tuple[bytes, bytes]],
    random_bytes: Callable[[int], bytes],
    *,
    begins: bool,
) -> TraceContext | None:
    """Return the trace of a request. One without a valid `traceparent` begins a trace, which is
    sampled, if `begins`; else it has none. Of several such headers none is valid."""
    parents = [value for name, value in headers if name == b"traceparent"]
    parent = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if parent is not None and _is_valid(parent):
        _, trace_id, parent_id, flags, _ = parent.groups()
        return TraceContext(
            trace_id.decode(),
            parent_id.decode(),
            random_bytes(8).hex(),
            bool(int(flags, 16) & _SAMPLED),
            _state(headers),
        )
    if not begins:
        return None
    return TraceContext(random_bytes(16).hex(), None, random_bytes(8).hex(), is_sampled=True)


def _is_valid(parent: re.Match[bytes]) -> bool:
    """Return whether the ids are not all zeros, and the version is one that may have this form."""
    version, trace_id, parent_id, _, rest = parent.groups()
    is_known = version != b"ff" and (version != b"00" or rest is None)
    return is_known and bool(trace_id.strip(b"0")) and bool(parent_id.strip(b"0"))


def _state(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the `tracestate` of a request, or none of it where it is too long or not in ASCII."""
    state = b",".join(value for name, value in headers if name == b"tracestate")
    return state.decode() if len(state) <= MAX_STATE_BYTES and _STATE.fullmatch(state) else ""
