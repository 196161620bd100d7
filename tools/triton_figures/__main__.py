"""Tells what the Triton kernels take of a GPU, found by compiling them, which needs none:
`make gpu-compile` does it with each Triton that Quire runs with, in some ten minutes each.
`--few` compiles some cases alone, `--for 86 120` for some GPUs alone. It fails where registers
spill, shared memory does not suffice, fewer programs run at once than a launch counts on, or a loop
of prefill on 9.0 loads nothing ahead, unless `excused.py` says why that is left so.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import triton

from quire.models.attention.triton.tiles import DeviceProperties
from tools.triton_figures.attention import ATTENTION
from tools.triton_figures.copies import COPIES
from tools.triton_figures.excused import Place, why_excused
from tools.triton_figures.experts import EXPERTS
from tools.triton_figures.grouped import GROUPED
from tools.triton_figures.layers import BETWEEN_LINEARS
from tools.triton_figures.measure import SM, Figures, assembler, measure
from tools.triton_figures.program import Case, Kernels
from tools.triton_figures.recurrent import RECURRENT
from tools.triton_figures.sampling import SAMPLING

ALL_KERNELS = (ATTENTION, EXPERTS, BETWEEN_LINEARS, GROUPED, RECURRENT, SAMPLING, COPIES)
NUM_SMS = 100
"""Any number will do: no program depends on it."""
ABOUT = """\
# What the kernels take of a GPU

`python -m tools.triton_figures` made this page, which needs no GPU, with Triton {triton}, `ptxas`
{ptxas} and, for 10.0 and 12.0, {blackwell}. By compute capability it tells registers of a thread,
bytes of them that are spilled (`+ 24 B`) if any are, KiB of shared memory of a program, the
programs that a multiprocessor runs at once (`2x`), the instructions of its two largest innermost
loops, in their order, or 0, and for each loop that loads ahead how many loads go on while it waits
for one: `chunks` has one loop for tiles of keys that some tokens see in part, and one for the
others. A multiprocessor has 65536 registers, and shared memory for a program of at most {shared}.
"""

Found = dict[tuple[str, int], Figures]
"""By name of a program and compute capability."""


class Measured(NamedTuple):
    """A case, what its programs take, and where they fall short, a line each."""

    case: Case
    found: Found
    faults: list[str]


def measured(kernels: Kernels, case: Case, capabilities: Iterable[int]) -> Measured:
    found: Found = {}
    faults = []
    for capability in capabilities:
        for program in case.programs(DeviceProperties(capability, NUM_SMS)):
            figures = found[program.name, capability] = measure(program, capability)
            where = Place(kernels.title, case.labels, program.name, capability, triton.__version__)
            reason = why_excused(where)
            for fault in figures.faults(program, capability):
                told = f"left so: {reason}" if reason else "SHORT"
                faults.append(f"- {where}: {fault} ({told})")
    return Measured(case, found, faults)


def about() -> str:
    shared = ", ".join(f"{sm.program_kib} KiB ({number / 10})" for number, sm in SM.items())
    old, new = (_version(assembler(capability)) for capability in (80, 100))
    return ABOUT.format(triton=triton.__version__, ptxas=old, blackwell=new, shared=shared)


def _version(ptxas: str) -> str:
    said = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    (version,) = re.findall(r"release ([\d.]+)", said)
    return str(version)


def tables(
    kernels: Kernels, found: Sequence[Measured], capabilities: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a table for each kernel."""
    names = dict.fromkeys(name for each in found for name, _ in each.found)
    headings = (*kernels.headings, *(str(each / 10) for each in capabilities))
    yield f"\n## {kernels.title}\n\n{kernels.about}"
    for name in names:
        yield f"\n### `{name}`\n\n{_row(headings)}\n{'|---' * len(headings)}|"
        for each in found:
            cells = [str(each.found.get((name, number), "")) for number in capabilities]
            yield _row((*each.case.labels, *cells))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", action="store_true")
    parser.add_argument(
        "--for", type=int, nargs="+", choices=SM, default=[*SM], dest="capabilities"
    )
    parser.add_argument("--out", type=Path, help="a file for the page, in place of the output")
    options = parser.parse_args()
    page, faults = [about()], list[str]()
    for kernels in ALL_KERNELS:
        found = []
        for case in kernels.cases():
            wanted = [each for each in options.capabilities if not options.few or each in case.few]
            if wanted:
                print(f"{kernels.title}: {'; '.join(case.labels)}", file=sys.stderr, flush=True)
                found.append(measured(kernels, case, wanted))
                faults += found[-1].faults
        page += tables(kernels, found, options.capabilities)
    summary = "\n".join(["\n## What falls short\n", *(faults or ["nothing"])])
    if options.out is None:
        print(*page, sep="\n")
    else:
        options.out.write_text("\n".join((*page, summary, "")))
    print(summary)
    return 1 if any(fault.endswith("(SHORT)") for fault in faults) else 0


if __name__ == "__main__":
    sys.exit(main())
