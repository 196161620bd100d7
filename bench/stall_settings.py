"""The options of `bench.stalls`, read from the command line and the environment."""

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers import PEERS, QUIRE
from bench.servers import Launch
from bench.settings import count
from bench.stall_load import StallLoad

TARGET = "--target-itl-ms"
KEYS = ("model", "program", "args")


@dataclass(frozen=True, slots=True)
class StallSettings:
    """The settings of a comparison under one load. `itl_steps` is how many decode steps of the
    first server its target is; None leaves its options as they are."""

    model_dir: Path
    launches: tuple[Launch, ...]
    load: StallLoad
    num_repeats: int
    seed: int
    start_timeout_s: float
    itl_steps: float | None
    json_path: Path | None
    log_dir: Path | None
    data_dir: Path | None
    is_recorded: bool


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.stalls",
        description="measure the pace of outputs beside long prompts, on servers in turn",
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument(
        "--server",
        nargs="+",
        action="append",
        required=True,
        metavar=("NAME", "KEY=VALUE"),
        help=f"one of {', '.join(sorted(PEERS))}; model=PATH is its own form of the model, such as "
        "a GGUF file, program=PATH its Python or binary (default: BENCH_<NAME>_PROGRAM, then "
        'PATH), args="..." more options; repeat it, the first is compared with the others',
    )
    parser.add_argument("--data", type=Path, help="folder with MT-bench: prompts of people")
    parser.add_argument("--repeats", type=count, default=3, help="rounds of all servers [3]")
    parser.add_argument("--seed", type=int, default=1, help="of the first round's prompts [1]")
    parser.add_argument(
        "--itl-steps",
        type=_above_0,
        help=f"give the first server a {TARGET} of so many of its steps without long prompts, "
        "which are measured before",
    )
    parser.add_argument("--watched-s", type=_above_0, help="a shorter time: a smoke run")
    parser.add_argument("--start-timeout-s", type=float, default=900, help="of each server [900]")
    parser.add_argument("--json", type=Path, help="write every gap there")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    parser.add_argument("--record", action="store_true", help="keep it in bench/records/stalls")
    return parser


def _above_0(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _launches(
    parser: argparse.ArgumentParser, args: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[Launch, ...]:
    launches, labels = [], Counter[str]()
    for name, *pairs in args.server:
        if name not in PEERS:
            parser.error(f"--server {name}: must be one of {', '.join(sorted(PEERS))}")
        given = dict(pair.partition("=")[::2] for pair in pairs)
        if wrong := [pair for pair in pairs if pair.partition("=")[0] not in KEYS]:
            parser.error(f"--server {name} {wrong[0]}: must begin with {'=, '.join(KEYS)}=")
        peer = PEERS[name]
        labels[name] += 1
        launches.append(
            Launch(
                label=name if labels[name] == 1 else f"{name}-{labels[name]}",
                peer=peer,
                program=given.get("program")
                or environment.get(peer.program_variable, peer.program),
                model_path=Path(given.get("model") or args.model).absolute(),
                options=tuple(shlex.split(given.get("args", ""))),
            )
        )
    return tuple(launches)


def parse_stalls(argv: Sequence[str], environment: Mapping[str, str]) -> StallSettings:
    """Read the command line; exits with a message where it makes no sense."""
    parser = _parser()
    args = parser.parse_args(argv)
    launches = _launches(parser, args, environment)
    if args.record and args.watched_s:
        parser.error("a run with --watched-s is not recorded")
    if not (args.model / "tokenizer.json").exists():
        parser.error(f"{args.model} holds no tokenizer.json")
    if args.itl_steps and (launches[0].peer is not QUIRE or TARGET in launches[0].options):
        parser.error(f"--itl-steps needs quire as the first server, without {TARGET}")
    return StallSettings(
        model_dir=args.model,
        launches=launches,
        load=StallLoad(watched_s=args.watched_s) if args.watched_s else StallLoad(),
        num_repeats=args.repeats,
        seed=args.seed,
        start_timeout_s=args.start_timeout_s,
        itl_steps=args.itl_steps,
        json_path=args.json,
        log_dir=args.logs,
        data_dir=args.data,
        is_recorded=args.record,
    )
