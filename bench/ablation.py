"""Switch Quire's optimisations off one at a time, and print what each brings.

    python -m bench.ablation --models MODELS --repeats 2 --scale 0.5 --record
    python -m bench.ablation --from-records

For each optimisation two servers are compared as `bench.compare` does it: one with all of them, and
one without that one. A gain is the throughput with it over that without it, the median of the
rounds. W1, W2 and W4 run on bench-0.5b, W5 on bench-15m. Exits with 1 if a comparison failed.
"""

import argparse
import math
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.ceilings import measure_ceilings
from bench.compare import compare, end_on_sigterm
from bench.machine import Machine, read_machine, without_folders
from bench.markdown import table
from bench.peers import QUIRE
from bench.records import (
    Record,
    WorkloadRecord,
    load,
    machine_kind,
    ratio_text,
    record_of,
    save,
)
from bench.servers import Launch
from bench.settings import Settings, count, cut
from bench.workloads import WORKLOADS
from quire.models.optimizations import Optimization
from quire.workbench.bench.workloads import Workload

MODELS: Mapping[str, str] = MappingProxyType(
    {"W1": "bench-0.5b", "W2": "bench-0.5b", "W4": "bench-0.5b", "W5": "bench-15m"}
)
"""The workloads, and the model that each runs on."""
BFLOAT16 = ("--dtype", "bfloat16")
WITHOUT = "quire-without-"
"""The labels of servers that do without an optimisation begin with this."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """One comparison.

    switch: the options that switch the optimisation off.
    options: the other options, of both servers.
    needed_flag: the CPU flag without which there is nothing to switch off.
    workloads: those in which it can matter.
    """

    name: str
    switch: tuple[str, ...]
    options: tuple[str, ...] = BFLOAT16
    needed_flag: str | None = None
    workloads: tuple[str, ...] = tuple(MODELS)

    def why_not(self, machine: Machine) -> str | None:
        """Return why nothing can be compared on this machine, or None."""
        if self.needed_flag is None or self.needed_flag in machine.cpu_flags:
            return None
        return f"this CPU has no {self.needed_flag}"


def _disabled(
    name: Optimization, needed_flag: str | None = None, options: tuple[str, ...] = BFLOAT16
) -> Ablation:
    return Ablation(name, ("--disable-optimizations", name), options, needed_flag)


_ALL = (
    Ablation("linears", ("--linear-backend", "torch")),
    Ablation("attention", ("--attention-backend", "reference")),
    _disabled(Optimization.COMPRESSED_BF16, "avx512_bf16"),
    _disabled(Optimization.FUSED_LAYERS),
    _disabled(Optimization.NATIVE_DECODER),
    _disabled(Optimization.WEIGHT_RELOCATION),
    _disabled(Optimization.HUGE_PAGES),
    _disabled(Optimization.NATIVE_SAMPLER),
    _disabled(Optimization.AMX, "amx_bf16"),
    _disabled(Optimization.AVX512, "avx512_bf16"),
    Ablation(
        "bf16-storage",
        ("--disable-optimizations", "bf16-storage"),
        ("--dtype", "float32"),
        workloads=("W1", "W2", "W4"),  # bench-15m is stored in float32
    ),
    _disabled(Optimization.W8A8, "avx512_vnni", ("--quantization", "int8")),
    Ablation("async-scheduling", ("--no-async-scheduling",), (*BFLOAT16, "--async-scheduling")),
)
ABLATIONS: Mapping[str, Ablation] = MappingProxyType({each.name: each for each in _ALL})
"""`linears` is all that is built on packed weights, against oneDNN through torch. `attention` is
the C++ kernel against torch's; without it layers run one by one too. `async-scheduling` is off on a
CPU unless it is asked for."""


@dataclass(frozen=True, slots=True)
class AblationSettings:
    """The settings of one run, as the command line gives them."""

    ablations: tuple[Ablation, ...]
    models_dir: Path
    workloads: tuple[str, ...]
    num_repeats: int
    scale: float
    log_dir: Path
    is_recorded: bool
    command: str

    def comparisons(self) -> Iterator[tuple[Ablation, Settings]]:
        """Yield the comparisons, one for each optimisation and model."""
        for each in self.ablations:
            names = [name for name in self.workloads if name in each.workloads]
            for model in dict.fromkeys(MODELS[name] for name in names):
                yield each, self._comparison(each, model, [n for n in names if MODELS[n] == model])

    def _comparison(self, ablation: Ablation, model: str, names: Sequence[str]) -> Settings:
        folder = self.models_dir / model
        first, second = (
            Launch(label, QUIRE, QUIRE.program, folder.absolute(), options)
            for label, options in (
                ("quire", ablation.options),
                (f"{WITHOUT}{ablation.name}", (*ablation.options, *ablation.switch)),
            )
        )
        return Settings(
            model_dir=folder,
            launches=(first, second),
            workloads=tuple(scaled(WORKLOADS[name], self.scale) for name in names),
            num_repeats=self.num_repeats,
            seed=1,
            start_timeout_s=300,
            run_timeout_s=900,
            json_path=None,
            log_dir=self.log_dir,
            is_recorded=self.is_recorded,
        )


def scaled(workload: Workload, scale: float) -> Workload:
    """Return the workload with that share of its requests, rounded up."""
    return cut(workload, math.ceil(scale * workload.num_requests))


def gain_tables(records: Iterable[Record]) -> str:
    """Return a Markdown table for each kind of machine: the newest gain of each optimisation."""
    newest: dict[str, dict[tuple[str, str], tuple[Record, WorkloadRecord]]] = {}
    for record in sorted(records, key=lambda record: record.date):
        name = record.servers[1].label.removeprefix(WITHOUT)
        if name != record.servers[1].label:
            found = newest.setdefault(machine_kind(record.machine), {})
            found.update({(name, each.workload): (record, each) for each in record.workloads})
    return "\n\n".join(
        f"### {kind}\n\n{table([_HEADINGS, *_gain_rows(found)])}"
        for kind, found in sorted(newest.items())
    )


_HEADINGS = ("optimisation", "options", *MODELS, "measured")


def _gain_rows(
    found: Mapping[tuple[str, str], tuple[Record, WorkloadRecord]],
) -> Iterator[list[str]]:
    known = list(ABLATIONS)
    names = sorted(
        {name for name, _ in found},
        key=lambda name: known.index(name) if name in known else len(known),
    )
    for name in names:
        mine = {workload: found[key] for key in found if key[0] == name for workload in key[1:]}
        last = max((record for record, _ in mine.values()), key=lambda record: record.date)
        cells = [ratio_text(mine[each][1].ratio) if each in mine else "" for each in MODELS]
        yield [
            name,
            f"`{last.servers[0].options}`",
            *cells,
            f"{last.date[:10]}, {last.commit[:7]}, {last.scale:g} of the requests",
        ]


def _names(known: Iterable[str], given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    unknown = set(names) - set(known)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no such name: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    return names


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.ablation",
        description="switch optimisations off one at a time, and print what each brings",
    )
    parser.add_argument("--models", type=Path, help="folder of bench-0.5b and bench-15m")
    parser.add_argument(
        "--only",
        type=lambda text: _names(ABLATIONS, text),
        default=tuple(ABLATIONS),
        metavar="NAME,...",
        help=f"of {', '.join(ABLATIONS)}",
    )
    parser.add_argument(
        "--workloads",
        type=lambda text: _names(MODELS, text),
        default=tuple(MODELS),
        metavar="W1,...",
        help=f"of {', '.join(MODELS)}",
    )
    parser.add_argument(
        "--repeats", type=count, default=2, help="rounds of both, every second in the other order"
    )
    parser.add_argument(
        "--scale", type=_share, default=1.0, help="share of each workload's requests that are sent"
    )
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    parser.add_argument("--record", action="store_true", help="keep in bench/records")
    parser.add_argument(
        "--from-records", action="store_true", help="measure nothing: print what was recorded"
    )
    return parser


def parse_settings(argv: Sequence[str]) -> AblationSettings | None:
    """Read the command line; None means that records are to be printed. Exits with a message where
    it makes no sense."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.from_records:
        return None
    workloads: tuple[str, ...] = args.workloads
    if args.models is None:
        parser.error("--models says where bench-0.5b and bench-15m are")
    for model in sorted({MODELS[name] for name in workloads}):
        if not (args.models / model / "tokenizer.json").exists():
            parser.error(f"{args.models / model} holds no tokenizer.json")
    return AblationSettings(
        ablations=tuple(ABLATIONS[name] for name in args.only),
        models_dir=args.models,
        workloads=workloads,
        num_repeats=args.repeats,
        scale=args.scale,
        log_dir=args.logs or Path(tempfile.mkdtemp(prefix="quire-ablation-")),
        is_recorded=args.record,
        command=without_folders(shlex.join(["python", "-m", "bench.ablation", *argv])),
    )


def run(settings: AblationSettings) -> tuple[list[Record], list[str]]:
    """Measure everything; return the records, and what failed."""
    records: list[Record] = []
    failures: list[str] = []
    machine, ceilings = read_machine(), measure_ceilings()
    for ablation, each in settings.comparisons():
        title = f"{ablation.name} on {each.model_dir.name}"
        why = ablation.why_not(machine)
        if why is not None:
            print(f"{title}: skipped, {why}", flush=True)
            continue
        print(f"{title}: {shlex.join(ablation.switch)}", flush=True)
        log_dir = settings.log_dir / f"{ablation.name}-{each.model_dir.name}"
        log_dir.mkdir(parents=True, exist_ok=True)
        try:
            comparison = compare(each, settings.command, log_dir, ceilings)
        except SystemExit as error:
            if not isinstance(error.code, str):  # a signal
                raise
            failures.append(f"{title}: {error.code}")
            continue
        if any(one.faults for one in comparison.runs):
            failures.append(f"{title}: some requests failed")
        records.append(record_of(comparison, scale=settings.scale))
        if settings.is_recorded:
            print(f"recorded in {save(records[-1]).name}", flush=True)
    return records, failures


def main() -> None:
    """Measure, or read what was recorded, and print the tables."""
    signal.signal(signal.SIGTERM, end_on_sigterm)
    settings = parse_settings(sys.argv[1:])
    if settings is None:
        print(gain_tables(load()))
        return
    print(f"server logs: {settings.log_dir}", flush=True)
    records, failures = run(settings)
    print(f"\n{gain_tables(records)}")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
