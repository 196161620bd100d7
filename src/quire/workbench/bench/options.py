"""The options of `quire bench`. Nothing heavy is imported here: `quire serve` imports it too."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire.output_files import drawable, writable
from quire.workbench.bench.workloads import WORKLOADS, Workload

STARTUP = "startup"
ALL = "all"
STARTING_COMMANDS = ("bench", "chat")
"""The commands that start a `quire serve` with what follows `--`."""
EPILOG = (
    "Without --url, the command starts `quire serve` on a free port with the options after `--`, "
    "and stops it afterwards: quire bench throughput -- MODEL --dtype bfloat16"
)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options as they were given.

    url: None stands for a server that is started with `serve_args`.
    num_input_tokens: None where the workloads' own lengths stand.
    """

    workloads: tuple[Workload, ...]
    measures_startup: bool
    num_repeats: int
    url: str | None
    vs: str | None
    model: str | None
    api_key: str | None = field(repr=False)
    num_input_tokens: int | None
    json_path: Path | None
    plot_path: Path | None
    serve_args: tuple[str, ...]


def count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return number


def header_safe(text: str) -> str:
    if not text.isascii() or not text.isprintable() or not text:
        raise argparse.ArgumentTypeError("a key has printable ASCII only")
    return text


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload",
        nargs="?",
        choices=(*WORKLOADS, STARTUP, ALL),
        default=ALL,
        help="workload [all]",
    )
    parser.add_argument(
        "--url", help="server to measure, as in http://localhost:8000 [one started here]"
    )
    parser.add_argument(
        "--vs", metavar="URL", help="second server, with the same requests in alternation"
    )
    parser.add_argument("--model", help="model [the first that each server lists]")
    parser.add_argument("--api-key", type=header_safe, help="sent to both servers")
    parser.add_argument("--requests", type=count, metavar="N", help="requests per round")
    parser.add_argument("--concurrency", type=count, metavar="N", help="concurrent clients")
    parser.add_argument("--input-tokens", type=count, metavar="N", help="length of a prompt")
    parser.add_argument("--output-tokens", type=count, metavar="N", help="length of a reply")
    parser.add_argument("--repeats", type=count, metavar="N", default=3, help="rounds [3]")
    parser.add_argument("--json", type=writable, metavar="FILE", help="all figures of every round")
    parser.add_argument(
        "--plot",
        type=drawable,
        metavar="FILE.png",
        help="a picture of all times and rates, .png or .svg; needs the extra `plot`",
    )


def split_serve_args(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split the arguments of a command that starts servers at the first `--`; those of other
    commands stay whole."""
    own = list(argv)
    if not own or own[0] not in STARTING_COMMANDS or "--" not in own:
        return own, ()
    at = own.index("--")
    return own[:at], tuple(own[at + 1 :])


def read_options(given: Mapping[str, object], serve_args: tuple[str, ...]) -> BenchOptions:
    """Return the options of parsed flags. ValueError says which flags do not go together."""
    flags = argparse.Namespace(**given)
    name: str = flags.workload
    if serve_args and flags.url is not None:
        raise ValueError("what follows `--` is for a server of our own; leave --url out")
    if name == STARTUP and (flags.url is not None or flags.vs is not None):
        raise ValueError("startup measures a server of our own; leave --url and --vs out")
    chosen = WORKLOADS.values() if name == ALL else [WORKLOADS[n] for n in WORKLOADS if n == name]
    return BenchOptions(
        workloads=tuple(_fitted(each, flags) for each in chosen),
        measures_startup=name == STARTUP or (name == ALL and flags.url is None),
        num_repeats=flags.repeats,
        url=flags.url,
        vs=flags.vs,
        model=flags.model,
        api_key=flags.api_key,
        num_input_tokens=flags.input_tokens,
        json_path=flags.json,
        plot_path=flags.plot,
        serve_args=serve_args,
    )


def _fitted(workload: Workload, flags: argparse.Namespace) -> Workload:
    """Return the workload with the counts that were asked for; latency has one client in any
    case."""
    num_requests = flags.requests or workload.num_requests
    clients = 1 if workload.concurrency == 1 else flags.concurrency or workload.concurrency
    counted = replace(
        workload,
        num_requests=num_requests,
        num_output_tokens=flags.output_tokens or workload.num_output_tokens,
        concurrency=min(clients, num_requests),
    )
    return counted.with_prompt(flags.input_tokens) if flags.input_tokens else counted
