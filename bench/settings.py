"""The options of one comparison, read from the command line and the environment."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers import PEERS
from bench.servers import Launch
from bench.workloads import TRACED, WORKLOADS
from quire.workbench.bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a comparison: the servers, the workloads, and where results go."""

    model_dir: Path
    launches: tuple[Launch, Launch]
    workloads: tuple[Workload, ...]
    num_repeats: int
    seed: int
    start_timeout_s: float
    run_timeout_s: float
    json_path: Path | None
    log_dir: Path | None
    is_recorded: bool
    data_dir: Path | None = None


def _workloads(names: str) -> tuple[Workload, ...]:
    known = {**WORKLOADS, TRACED.name: TRACED}
    unknown = set(names.split(",")) - set(known)
    if unknown:
        raise argparse.ArgumentTypeError(f"no such workload: {', '.join(sorted(unknown))}")
    return tuple(known[name] for name in names.split(","))


def cut(workload: Workload, max_requests: int) -> Workload:
    """Return the workload with at most `max_requests` requests."""
    return replace(workload, num_requests=min(max_requests, workload.num_requests))


def count(text: str) -> int:
    """Parse a count of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("the two servers")
    options.add_argument("--subject", choices=sorted(PEERS), default="quire", help="the first")
    options.add_argument("--peer", choices=sorted(PEERS), default="transformers", help="the second")
    for role, also in (("subject", ["--quire-{}"]), ("peer", [])):
        for what, meaning in (
            ("args", "more options of the server, in one quoted text"),
            ("program", "its Python or binary; default: BENCH_<NAME>_PROGRAM, then PATH"),
            ("model", "its own form of the model, such as a GGUF file; default: --model"),
        ):
            names = [f"--{role}-{what}", *(alias.format(what) for alias in also)]
            options.add_argument(*names, help=meaning)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description="measure two servers in turn, print the ratio"
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--workloads", type=_workloads, default=",".join(WORKLOADS))
    parser.add_argument(
        "--repeats", type=count, default=3, help="rounds of both, every second in the other order"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first round's prompts")
    parser.add_argument("--max-requests", type=count, help="cut every workload: a smoke run")
    parser.add_argument("--start-timeout-s", type=float, default=300)
    parser.add_argument("--run-timeout-s", type=float, default=900, help="of one workload")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    parser.add_argument(
        "--record", action="store_true", help="keep in bench/records, refresh RESULTS.md"
    )
    parser.add_argument(
        "--data", type=Path, help="folder with MT-bench and the Azure trace: prompts of people, WA"
    )
    _add_server_options(parser)
    return parser


def _launch(
    args: argparse.Namespace, environment: Mapping[str, str], *, role: str, label: str
) -> Launch:
    given: dict[str, str | None] = {
        what: getattr(args, f"{role}_{what}") for what in ("args", "program", "model")
    }
    peer = PEERS[getattr(args, role)]
    return Launch(
        label=label,
        peer=peer,
        program=given["program"] or environment.get(peer.program_variable) or peer.program,
        model_path=Path(given["model"] or args.model).absolute(),
        options=tuple(shlex.split(given["args"] or "")),
    )


def parse_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read the command line; exits with a message where it makes no sense."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.record and args.max_requests:
        parser.error("a cut run is not recorded")
    if not (args.model / "tokenizer.json").exists():
        parser.error(f"{args.model} holds no tokenizer.json")
    workloads: tuple[Workload, ...] = args.workloads
    if TRACED in workloads and args.data is None:
        parser.error(f"{TRACED.name} needs --data, which has the trace")
    if args.max_requests:
        workloads = tuple(cut(workload, args.max_requests) for workload in workloads)
    second_label = args.peer if args.peer != args.subject else f"{args.peer}-2"
    return Settings(
        model_dir=args.model,
        launches=(
            _launch(args, environment, role="subject", label=args.subject),
            _launch(args, environment, role="peer", label=second_label),
        ),
        workloads=workloads,
        num_repeats=args.repeats,
        seed=args.seed,
        start_timeout_s=args.start_timeout_s,
        run_timeout_s=args.run_timeout_s,
        json_path=args.json,
        log_dir=args.logs,
        is_recorded=args.record,
        data_dir=args.data,
    )
