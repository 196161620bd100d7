"""Traces of Mooncake (arXiv 2407.00079): a JSON object a line with `timestamp` in milliseconds,
`input_length`, `output_length` and `hash_ids`, one for each block of 512 tokens of the prompt.
Equal ids are equal blocks behind equal beginnings, and become equal tokens.
"""

from collections.abc import Iterable

import msgspec

from quire.workbench.simulation.traces.trace_error import TraceError, whole_number
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest

TRACE_BLOCK_SIZE = 512


class _Line(msgspec.Struct):
    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_mooncake(lines: Iterable[str]) -> list[TracedRequest]:
    """Return the requests of a trace in the order of their arrival. Raises TraceError, which names
    the line."""
    decoder = msgspec.json.Decoder(_Line)
    found: list[TracedRequest] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_request(decoder.decode(line), len(found)))
        except (msgspec.MsgspecError, TraceError) as error:
            raise TraceError(f"line {number}: {error}") from None
    return sorted(found, key=lambda each: each.sent_s)


def _request(line: _Line, number: int) -> TracedRequest:
    num_prompt = whole_number(line.input_length, "input_length", at_least=1)
    num_output = whole_number(line.output_length, "output_length", at_least=1)
    num_blocks = -(-num_prompt // TRACE_BLOCK_SIZE)
    if len(line.hash_ids) != num_blocks:
        raise TraceError(
            f"hash_ids has {len(line.hash_ids)} ids, must be {num_blocks}: one for each "
            f"{TRACE_BLOCK_SIZE} tokens of input_length {num_prompt}"
        )
    if line.timestamp < 0 or min(line.hash_ids) < 0:
        raise TraceError("timestamp and hash_ids must be 0 or more")
    rest = num_prompt - TRACE_BLOCK_SIZE * (num_blocks - 1)
    sizes = [TRACE_BLOCK_SIZE] * (num_blocks - 1) + [rest]
    parts = tuple(map(PromptPart, line.hash_ids, sizes))
    return TracedRequest(f"r{number}", line.timestamp / 1000, parts, num_output)
