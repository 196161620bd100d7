"""Compare Quire with its peers on real weights and the prompts of people, all in one command.

    python -m bench.real --models MODELS --data DATA --repeats 3 --record

MODELS has `smollm2/` and `smollm2-TYPE.gguf` for bf16, Q8_0, Q4_0 and Q4_K_M; DATA has MT-bench and
the Azure trace. For each peer both servers run the same prompts in turn, as
`bench.compare` does it. `BENCH_<NAME>_PROGRAM` says where a peer lies; one without is left out, and
named. Exits with 1 if a comparison failed.
"""

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.ceilings import measure_ceilings
from bench.compare import compare, end_on_sigterm
from bench.machine import without_folders
from bench.peers import LLAMACPP, OPENVINO, QUIRE, TRANSFORMERS, VLLM, Peer
from bench.records import RESULTS, load, record_of, results_page, save
from bench.report import section
from bench.servers import Launch
from bench.settings import Settings, count, cut
from bench.workloads import TRACED, WORKLOADS

MODEL = "smollm2"
INT8 = ("--quantization", "int8")
INT4 = ("--quantization", "int4")
START_TIMEOUT_S = 900.0
"""vLLM compiles for minutes when it starts for the first time."""


@dataclass(frozen=True, slots=True)
class Opponent:
    """A peer with weights of one kind. `gguf` is the type of its file, None where it reads ours;
    `options` are those of Quire beside it."""

    peer: Peer
    gguf: str | None = None
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name under which it is recorded."""
        return "-".join(filter(None, (self.peer.name, self.gguf)))


OPPONENTS: Mapping[str, Opponent] = {
    each.label: each
    for each in (
        Opponent(TRANSFORMERS),
        Opponent(VLLM),
        Opponent(LLAMACPP, "bf16"),
        Opponent(LLAMACPP, "Q8_0", INT8),
        Opponent(LLAMACPP, "Q4_0", INT4),
        Opponent(LLAMACPP, "Q4_K_M", INT4),
        Opponent(OPENVINO, "Q8_0", INT8),
        Opponent(OPENVINO, "Q4_0", INT4),
    )
}
"""The peers in equal precision."""


def launches(args: argparse.Namespace, opponent: Opponent, program: str) -> tuple[Launch, Launch]:
    """Return how Quire and its opponent start."""
    folder: Path = args.models.absolute()
    name = MODEL if opponent.gguf is None else f"{MODEL}-{opponent.gguf}.gguf"
    options = (*opponent.options, *shlex.split(args.quire_args))
    return (
        Launch("quire", QUIRE, QUIRE.program, folder / MODEL, options),
        Launch(opponent.label, opponent.peer, program, folder / name, ()),
    )


def comparisons(args: argparse.Namespace, environment: Mapping[str, str]) -> Iterator[Settings]:
    """Yield the settings of each comparison that can run here; say which cannot."""
    known = {**WORKLOADS, TRACED.name: TRACED}
    workloads = [known[name] for name in args.workloads.split(",")]
    if args.max_requests:
        workloads = [cut(each, args.max_requests) for each in workloads]
    for name in args.only.split(","):
        opponent = OPPONENTS[name]
        program = environment.get(opponent.peer.program_variable)
        if program is None:
            print(f"{name} is left out: {opponent.peer.program_variable} is not set", flush=True)
            continue
        yield Settings(
            model_dir=args.models / MODEL,
            launches=launches(args, opponent, program),
            workloads=tuple(workloads),
            num_repeats=args.repeats,
            seed=args.seed,
            start_timeout_s=START_TIMEOUT_S,
            run_timeout_s=START_TIMEOUT_S,
            json_path=None,
            log_dir=args.logs,
            is_recorded=args.record,
            data_dir=args.data,
        )


def run(settings: Settings, command: str, log_dir: Path) -> bool:
    """Make one comparison, print it, and keep it if it is to be; return whether all was valid."""
    before = measure_ceilings()
    comparison = compare(settings, command, log_dir, before)
    comparison = replace(comparison, ceilings=before.or_better(measure_ceilings()))
    print(f"\n{section(comparison)}", flush=True)
    if settings.is_recorded:
        print(f"recorded in {save(record_of(comparison)).name}", flush=True)
        RESULTS.write_text(results_page(load()), encoding="utf-8")
    return not any(each.faults for each in comparison.runs)


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line; exits with a message where it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m bench.real", description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default=",".join(OPPONENTS), help="the peers, by commas")
    parser.add_argument("--workloads", default=",".join((*WORKLOADS, TRACED.name)))
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quire-args", default="", help="more options of Quire, in one text")
    parser.add_argument("--max-requests", type=count, help="cut every workload: a smoke run")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    parser.add_argument("--record", action="store_true", help="keep, and refresh RESULTS.md")
    args = parser.parse_args(argv)
    if args.record and args.max_requests:
        parser.error("a cut run is not recorded")
    unknown = set(args.only.split(",")) - set(OPPONENTS)
    unknown |= set(args.workloads.split(",")) - {*WORKLOADS, TRACED.name}
    if unknown:
        parser.error(f"neither a peer nor a workload: {', '.join(sorted(unknown))}")
    return args


def main() -> None:
    """Make all comparisons, one after another."""
    signal.signal(signal.SIGTERM, end_on_sigterm)
    args = parse(sys.argv[1:])
    command = without_folders(shlex.join(["python", "-m", "bench.real", *sys.argv[1:]]))
    log_dir = args.logs or Path(tempfile.mkdtemp(prefix="quire-bench-"))
    log_dir.mkdir(parents=True, exist_ok=True)
    print(f"server logs: {log_dir}", flush=True)
    valid = [run(settings, command, log_dir) for settings in comparisons(args, os.environ)]
    if not all(valid):
        sys.exit("some requests failed or were answered with the wrong number of tokens")


if __name__ == "__main__":
    main()
