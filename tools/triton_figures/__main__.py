"""Tells what the Triton kernels take of a GPU, found by compiling them, which needs none:
`python -m tools.triton_figures > docs/gpu-kernels.md` writes the page anew, in some ten minutes.
`--few` compiles some cases alone, `--for 86 120` for some GPUs alone. It fails where registers
spill or shared memory does not suffice.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

import triton

from quire.models.attention.triton.tiles import Device
from tools.triton_figures.attention import ATTENTION
from tools.triton_figures.copies import COPIES
from tools.triton_figures.experts import EXPERTS
from tools.triton_figures.layers import BETWEEN_LINEARS
from tools.triton_figures.measure import SHARED_KIB, Figures, assembler, measure
from tools.triton_figures.program import Case, Kernels
from tools.triton_figures.sampling import SAMPLING

ALL_KERNELS = (ATTENTION, EXPERTS, BETWEEN_LINEARS, SAMPLING, COPIES)
NUM_SMS = 100
"""Any number will do: no program depends on it."""
ABOUT = """\
# What the kernels take of a GPU

`python -m tools.triton_figures > docs/gpu-kernels.md` made this page, which needs no GPU, with
Triton {triton}, `ptxas` {ptxas} and, for 10.0 and 12.0, {blackwell}. By compute capability it tells
registers of a thread, bytes of them that are spilled (`+ 24 B`) if any are, KiB of shared memory of
a program, and the instructions of its two largest innermost loops, in their order, or 0: `chunks`
has one for tiles of keys that some tokens see in part, and one for the others. A multiprocessor has
65536 registers, and shared memory for a program of at most {shared}.
"""

Found = dict[tuple[str, int], Figures]
"""By name of a program and compute capability."""


def figures(case: Case, capabilities: Iterable[int]) -> Found:
    return {
        (program.name, capability): measure(program, capability)
        for capability in capabilities
        for program in case.programs(Device(capability, NUM_SMS))
    }


def about() -> str:
    shared = ", ".join(f"{kib} KiB ({number / 10})" for number, kib in SHARED_KIB.items())
    old, new = (_version(assembler(capability)) for capability in (80, 100))
    return ABOUT.format(triton=triton.__version__, ptxas=old, blackwell=new, shared=shared)


def _version(ptxas: str) -> str:
    said = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    (version,) = re.findall(r"release ([\d.]+)", said)
    return str(version)


def tables(
    kernels: Kernels, found: Sequence[tuple[Case, Found]], capabilities: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a table for each kernel."""
    names = dict.fromkeys(name for _, by_name in found for name, _ in by_name)
    headings = (*kernels.headings, *(str(each / 10) for each in capabilities))
    yield f"\n## {kernels.title}\n\n{kernels.about}"
    for name in names:
        yield f"\n### `{name}`\n\n{_row(headings)}\n{'|---' * len(headings)}|"
        for case, by_name in found:
            cells = [str(by_name.get((name, each), "")) for each in capabilities]
            yield _row((*case.labels, *cells))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", action="store_true")
    parser.add_argument(
        "--for", type=int, nargs="+", choices=SHARED_KIB, default=[*SHARED_KIB], dest="capabilities"
    )
    options = parser.parse_args()
    print(about(), end="")
    are_fine = True
    for kernels in ALL_KERNELS:
        found = []
        for case in kernels.cases():
            wanted = [each for each in options.capabilities if not options.few or each in case.few]
            if wanted:
                found.append((case, figures(case, wanted)))
        print("\n".join(tables(kernels, found, options.capabilities)), flush=True)
        are_fine &= all(
            each.are_fine(capability)
            for _, by_name in found
            for (_, capability), each in by_name.items()
        )
    return 0 if are_fine else 1


if __name__ == "__main__":
    sys.exit(main())
