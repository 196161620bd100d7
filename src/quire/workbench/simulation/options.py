"""The options of `quire sim`. Nothing heavy is imported here: every command imports it."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from quire.output_files import drawable, writable
from quire.scheduler.policy import PolicyName, QueueOrder

DEFAULT_COST = "h100-8b"
DEFAULT_LINK_GBIT_S = 25.0
EPILOG = (
    "TRACE is a file (.csv as Azure's traces, .jsonl as Mooncake's, .flight of the flight "
    "recorder), or a shape: poisson:rate=4,requests=1000,prompt=512,output=128; "
    "gamma:rate=4,cv=3,...; closed:concurrency=32,requests=64,prompt=100-900,shared=512,...; "
    "agents:rate=1,turns=12,requests=64,shared=4000,prompt=1000,growth=200-2000,..."
)


def _count(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        number = int(text) if text.isdecimal() else -1
        if number < least:
            raise argparse.ArgumentTypeError(f"expected {least} or more, got {text!r}")
        return number

    return count


def _above_0(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def _share(text: str) -> float:
    number = _above_0(text)
    if number > 1:
        raise argparse.ArgumentTypeError(f"expected a share of up to 1, got {text!r}")
    return number


def _policies(text: str) -> tuple[PolicyName, ...]:
    try:
        return tuple(dict.fromkeys(PolicyName(each) for each in text.split(",")))
    except ValueError:
        known = ", ".join(PolicyName)
        raise argparse.ArgumentTypeError(f"expected some of {known}, got {text!r}") from None


def _orders(text: str) -> tuple[QueueOrder, ...]:
    try:
        return tuple(dict.fromkeys(QueueOrder(each) for each in text.split(",")))
    except ValueError:
        known = ", ".join(QueueOrder)
        raise argparse.ArgumentTypeError(f"expected some of {known}, got {text!r}") from None


def _counts(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_count(0)(each) for each in text.split(",")))


def add_sim_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="the requests, see below")
    _add_load(parser)
    _add_engine(parser)
    _add_sessions(parser)
    _add_fleet(parser)
    _add_objective(parser)
    parser.add_argument("--json", type=writable, metavar="FILE", help="all figures")
    parser.add_argument(
        "--plot",
        type=drawable,
        metavar="FILE.png",
        help="a picture of all times, .png or .svg; needs the extra `plot`",
    )
    parser.add_argument(
        "--calibrate",
        type=writable,
        metavar="FILE.json",
        help="fit a cost model to the steps of the --record files, and write it",
    )
    parser.add_argument(
        "--record",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.flight",
        help="flight record for --calibrate; may be repeated",
    )
    parser.add_argument(
        "--client",
        type=Path,
        metavar="FILE.json",
        help="for --calibrate: the file of `quire bench latency --json` for recorded requests, "
        "which gives the overhead of the server",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--requests", type=_count(1), metavar="N", help="use the first N requests of the trace"
    )
    parser.add_argument(
        "--speed-up",
        type=_above_0,
        default=1.0,
        metavar="X",
        help="send requests X times as fast [1]",
    )
    parser.add_argument("--seed", type=_count(0), default=0, metavar="N", help="random seed [0]")
    parser.add_argument(
        "--max-tokens",
        type=_count(1),
        metavar="N",
        help="let requests ask for up to N tokens of output; they end as in the trace all the same "
        "[as many as they have, or as recorded]",
    )
    parser.add_argument(
        "--tenants",
        type=_count(1),
        default=1,
        metavar="N",
        help="assign each request one of N random tenants [1]",
    )
    parser.add_argument(
        "--priorities",
        type=_count(1),
        default=1,
        metavar="N",
        help="assign each request one of N random priorities [1]",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cost",
        default=DEFAULT_COST,
        metavar="NAME",
        help=f"a cost model: a file of --calibrate, or a built-in one [{DEFAULT_COST}]",
    )
    parser.add_argument(
        "--policy",
        type=_policies,
        default=(PolicyName.FCFS,),
        metavar="LIST",
        help=f"scheduling policies side by side: {','.join(PolicyName)} [fcfs]",
    )
    parser.add_argument(
        "--queue-order",
        type=_orders,
        default=(),
        metavar="LIST",
        help=f"orders of equal requests side by side: {','.join(QueueOrder)} [arrival, or as "
        "recorded]",
    )
    for flag, what in (
        ("max-num-seqs", "maximum sequences of a step"),
        ("max-num-batched-tokens", "maximum tokens of a step"),
        ("max-model-len", "maximum tokens of a request"),
        ("num-gpu-blocks-override", "number of KV blocks"),
        ("max-num-queued-reqs", "maximum waiting requests"),
    ):
        parser.add_argument(
            f"--{flag}", type=_count(1), metavar="N", help=f"{what} [of the cost model]"
        )
    parser.add_argument(
        "--num-recurrent-states",
        type=_count(2),
        metavar="N",
        help="number of states of recurrent layers, with the null state [of the cost model]",
    )
    parser.add_argument(
        "--state-snapshot-interval",
        type=_count(0),
        metavar="N",
        help="tokens between further snapshots of states in a prompt; 0: none [0, or as recorded]",
    )


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-sessions",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the blocks of sessions that are expected again [yes, or as recorded]",
    )


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engines", type=_count(1), default=1, metavar="N", help="engines of the model [1]"
    )
    parser.add_argument(
        "--prefill-engines",
        type=_counts,
        default=(0,),
        metavar="LIST",
        help="numbers of engines that only compute prompts, to compare: 0,2,4 [0]",
    )
    parser.add_argument(
        "--link-gbit-s",
        type=_above_0,
        default=DEFAULT_LINK_GBIT_S,
        metavar="X",
        help=f"Gbit/s of the link of each prefill engine [{DEFAULT_LINK_GBIT_S:g}]",
    )


def _add_objective(parser: argparse.ArgumentParser) -> None:
    for flag, what in (("ttft", "to the first token"), ("itl", "between two tokens")):
        parser.add_argument(
            f"--target-{flag}-ms",
            type=_above_0,
            metavar="MS",
            help=f"latency target of all requests: milliseconds {what} [as recorded, or none]",
        )
    for flag, what in (
        ("slo-ttft-ms", "to the first token"),
        ("slo-itl-ms", "between two tokens of an answer, on average"),
        ("slo-e2e-ms", "to the end of an answer"),
    ):
        parser.add_argument(
            f"--{flag}", type=_above_0, metavar="MS", help=f"objective: milliseconds {what}"
        )
    parser.add_argument(
        "--slo-share",
        type=_share,
        default=0.99,
        help="share of requests that must meet the objectives [0.99]",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="simulate settings around the given ones, and report those that meet the objectives "
        "and their maximum load",
    )
