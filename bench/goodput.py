"""Compares rules for the share of prompts in a step by goodput: the requests in time.

    python -m bench.goodput --data DATA --record [--only NAME ...] [--plot FILE.png]

Quire's scheduler and cache run on traces in virtual time, as in `quire sim`, with other rules in
the place of its own. A request is in time with its first token within a second and the others 50 ms
apart in the mean. Quire's rule knows these targets; the others have a budget of tokens, and run
requests as they came.

The load is a share of the capacity: the requests a second that the device serves when all of them
wait from the beginning, under the budget that serves most. There the work of the device equals its
time; whether answers are in time is no matter. A capacity by answers in time would depend on the
rules that are compared, and nobody could have much more than the best budget below it.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace as replaced

from bench.contenders import BUDGETS, CONTENDERS, Contender
from bench.goodput_bound import most_in_time
from bench.goodput_plot import draw
from bench.goodput_records import GoodputRecord, GoodputRow, goodput_table, newest_rows
from bench.machine import read_commit, without_folders
from bench.records import DATE_FORMAT
from quire.output_files import check_plotting, drawable
from quire.workbench.simulation.cost.cost_file import CostFile, load_cost
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.figures import Objective
from quire.workbench.simulation.options import DEFAULT_COST
from quire.workbench.simulation.simulation import (
    Costs,
    SimLoad,
    Simulation,
    SimulationResult,
    scheduler_of,
    setup_of,
)
from quire.workbench.simulation.traces.read import read_trace
from quire.workbench.simulation.traces.traced_request import TracedRequest, sped_up, with_targets

REPOSITORY = Path(__file__).resolve().parents[1]
TRACES = {
    "Azure conversation": "azure_llm_2023_conv.csv",
    "Azure code": "azure_llm_2023_code.csv",
    "Mooncake conversation": "mooncake_conversation_trace.jsonl",
}
LOADS = (0.5, 0.7, 0.9, 1.0, 1.2)
TTFT_S, ITL_S = 1.0, 0.05
OBJECTIVE = Objective(1e3 * TTFT_S, 1e3 * ITL_S)
MAX_MODEL_LEN = 1 << 17
"""So long that no request of the traces is refused."""


class BenchTrace(NamedTuple):
    """Requests, and the device that serves them."""

    name: str
    requests: Sequence[TracedRequest]
    cost: CostFile

    def run(self, requests: Sequence[TracedRequest], contender: Contender) -> SimulationResult:
        """Return the outcome of requests under a contender."""
        shape = replaced(self.cost.engine, max_num_batched_tokens=contender.num_tokens)
        engine = replace(setup_of(shape, scheduler_of(shape)), rule_of=contender.rule_of)
        costs = Costs(FittedCost(self.cost.step), self.cost.gap, self.cost.server)
        if contender.has_targets:
            requests = list(with_targets(requests, TTFT_S, ITL_S))
        return Simulation(engine, costs, SimLoad(requests)).run()

    @property
    def rate(self) -> float:
        """The requests a second of the trace itself."""
        return len(self.requests) / (self.requests[-1].sent_s - self.requests[0].sent_s)


def capacity(trace: BenchTrace) -> tuple[str, float]:
    """Return the budget that serves most requests a second where all wait, and how many."""
    at_once = [replace(each, sent_s=0.0) for each in trace.requests]
    served = {}
    for contender in BUDGETS:
        ended = trace.run(at_once, contender)
        served[contender.name] = len(at_once) / ended.seconds
        _say(f"{trace.name}, at once, {contender.name}: {served[contender.name]:.3f} a second")
    return max(served.items(), key=lambda each: each[1])


def rows_of(trace: BenchTrace, loads: Sequence[float]) -> Iterator[GoodputRow]:
    """Yield a row for each load, a share of the capacity."""
    budget, capacity_req_s = capacity(trace)
    for load in loads:
        requests = sped_up(trace.requests, load * capacity_req_s / trace.rate)
        bound = most_in_time(requests, trace.cost, TTFT_S, ITL_S)
        good = dict(_in_time(trace, requests, load))
        yield GoodputRow(
            trace.name, len(requests), budget, capacity_req_s, load, bound / len(requests), good
        )


def _in_time(
    trace: BenchTrace, requests: Sequence[TracedRequest], load: float
) -> Iterator[tuple[str, float]]:
    """Yield the share of the requests in time under each contender."""
    for contender in CONTENDERS:
        answers = trace.run(requests, contender).clients.answers
        share = sum(map(OBJECTIVE.is_met, answers)) / len(answers)
        _say(f"{trace.name}, {load:g} of capacity, {contender.name}: {share:.1%}")
        yield contender.name, share


def traces(data: Path, only: Sequence[str] | None, num_requests: int) -> Iterator[BenchTrace]:
    """Yield the traces that `--only` names."""
    cost = load_cost(DEFAULT_COST)
    cost = replaced(cost, engine=replaced(cost.engine, max_model_len=MAX_MODEL_LEN))
    for name, file in TRACES.items():
        if only is None or name in only:
            requests = read_trace(str(data / file), 0).load.requests[:num_requests]
            yield BenchTrace(name, requests, cost)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.goodput", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the traces")
    parser.add_argument("--requests", type=int, default=2000, help="the first of each trace [2000]")
    parser.add_argument("--only", action="append", choices=TRACES, help="a trace; repeat it [all]")
    parser.add_argument("--load", type=float, action="append", help="of capacity; repeat it")
    parser.add_argument("--record", action="store_true", help="keep it in bench/records/goodput")
    parser.add_argument("--plot", type=drawable, help="a picture of all that is recorded")
    words = sys.argv[1:] if argv is None else list(argv)
    flags = parser.parse_args(words)
    chosen = traces(flags.data, flags.only, flags.requests)
    record = GoodputRecord(
        datetime.now(UTC).strftime(DATE_FORMAT),
        read_commit(REPOSITORY),
        without_folders(shlex.join(("python", "-m", "bench.goodput", *words))),
        tuple(row for trace in chosen for row in rows_of(trace, flags.load or LOADS)),
    )
    if flags.record:
        print(record.save())
    if flags.plot is not None:
        check_plotting()
        draw(newest_rows(), flags.plot)
    print(goodput_table(record.rows))


if __name__ == "__main__":
    main()
