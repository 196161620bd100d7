"""Fits what the server adds to a request, from the times of a client that was alone.

An idle engine takes a request at once. So what a lone client waits for its first token longer than
the engine takes for it is the server's: the connection, reading, tokenising, the way to the engine
and back. Beside others the same time lets a request miss the beginning of a step, and a step is
long: of a median time to first token it is a large part.
"""

from collections.abc import Collection, Iterable, Iterator
from math import inf
from pathlib import Path
from statistics import median

import msgspec

from quire.workbench.simulation.cost.cost_file import CostFileError, ServerCost
from quire.workbench.simulation.recorded import RecordedAnswer


class _Samples(msgspec.Struct):
    first_token_ms: tuple[float, ...]


class _Figures(msgspec.Struct):
    samples: _Samples
    prompt_lengths: tuple[int, int] | None = None


class _Run(msgspec.Struct):
    workload: str
    label: str
    figures: _Figures


class _Workload(msgspec.Struct):
    name: str
    concurrency: int


class _Report(msgspec.Struct):
    workloads: tuple[_Workload, ...]
    runs: tuple[_Run, ...]


class LoneClient(msgspec.Struct, frozen=True):
    """A client that had one request at a time: the seconds to the first token of each, and the
    fewest and the most tokens of a prompt."""

    first_token_s: tuple[float, ...]
    prompt_lengths: tuple[int, int]


def read_lone_client(path: Path) -> LoneClient:
    """Return what a report of `quire bench --json` tells of one client at a time, on the first of
    its servers. Raises CostFileError, OSError."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CostFileError(f"{path}: no report of quire bench --json: {error}") from None
    alone = {each.name for each in report.workloads if each.concurrency == 1}
    runs = [
        each.figures
        for each in report.runs
        if each.workload in alone and each.label == report.runs[0].label
    ]
    lengths = [each.prompt_lengths for each in runs if each.prompt_lengths is not None]
    times_s = [each / 1e3 for run in runs for each in run.samples.first_token_ms]
    if not lengths or not times_s:
        raise CostFileError(
            f"{path}: no request of one client at a time was answered there, as those of `quire "
            "bench latency --json` are"
        )
    low, high = min(low for low, _ in lengths), max(high for _, high in lengths)
    return LoneClient(tuple(times_s), (low, high))


def fit_server(records: Iterable[Collection[RecordedAnswer]], client: LoneClient) -> ServerCost:
    """Return the server's part by the medians of the client and of the engine, over answers of each
    record that were alone and have such prompts. Raises CostFileError where there are none."""
    low, high = client.prompt_lengths
    times_s = [
        each.token_times_s[0] - each.added_s
        for answers in records
        for each in _alone(answers)
        if low <= each.arrival.num_prompt_tokens <= high
    ]
    if not times_s:
        raise CostFileError(
            f"no request of the records was alone in the engine with {low} to {high} tokens of "
            "prompt: the client's requests are not in them"
        )
    return ServerCost(request_latency_s=max(median(client.first_token_s) - median(times_s), 0.0))


def _alone(answers: Collection[RecordedAnswer]) -> Iterator[RecordedAnswer]:
    """Yield the answers beside which the engine had no other, in the order of their arrival."""
    ordered, ended_s = sorted(answers, key=lambda answer: answer.added_s), -inf
    nexts_s = (*(each.added_s for each in ordered[1:]), inf)
    for each, next_s in zip(ordered, nexts_s, strict=False):
        last_s = each.token_times_s[-1] if each.token_times_s else inf
        if each.has_ended and ended_s <= each.added_s and last_s <= next_s:
            yield each
        ended_s = max(ended_s, last_s)
