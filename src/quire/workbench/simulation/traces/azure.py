"""Traces of Azure's LLM services (Splitwise, arXiv 2311.18677): CSV of the time of arrival, the
tokens of the prompt and the tokens of the output. Nothing says which prompts begin alike, so each
has its own tokens.
"""

import csv
from collections.abc import Iterable
from datetime import datetime

from quire.workbench.simulation.traces.trace_error import TraceError, whole_number
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = len("2023-11-16 18:15:46.680590")


def read_azure(lines: Iterable[str]) -> list[TracedRequest]:
    """Return the requests of a trace in the order of their arrival. Raises TraceError, which names
    the line."""
    rows = csv.reader(lines)
    head = next(rows, [])
    if tuple(head) != COLUMNS:
        raise TraceError(f"line 1: the columns are {','.join(head)}, must be {','.join(COLUMNS)}")
    found: list[TracedRequest] = []
    for row in rows:
        if not row:
            continue
        try:
            found.append(_request(row, len(found)))
        except TraceError as error:
            raise TraceError(f"line {rows.line_num}: {error}") from None
    first_s = min((each.sent_s for each in found), default=0.0)
    return sorted((_after(each, first_s) for each in found), key=lambda each: each.sent_s)


def _request(row: list[str], number: int) -> TracedRequest:
    if len(row) != len(COLUMNS):
        raise TraceError(f"it has {len(row)} columns, must be {len(COLUMNS)}")
    stamp, num_prompt, num_output = row
    try:
        sent_s = datetime.fromisoformat(stamp[:_STAMP]).timestamp()
    except ValueError:
        raise TraceError(
            f"{COLUMNS[0]} is {stamp!r}, must be a time such as 2023-11-16 18:15:46.6805900"
        ) from None
    part = PromptPart(number, whole_number(num_prompt, COLUMNS[1], at_least=1))
    outputs = whole_number(num_output, COLUMNS[2], at_least=1)
    return TracedRequest(f"r{number}", sent_s, (part,), outputs)


def _after(request: TracedRequest, first_s: float) -> TracedRequest:
    sent_s = round(request.sent_s - first_s, 6)
    return TracedRequest(request.id, sent_s, request.parts, request.num_output_tokens)
