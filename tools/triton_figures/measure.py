"""Compiles programs, and reads off registers, what of them spills, and shared memory."""

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget

from tools.triton_figures.program import Program

SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""The most shared memory of a program, by compute capability; from the CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability"."""
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


class Figures(NamedTuple):
    """Says what a program takes. `num_registers` are those of a thread; `loops` are instructions,
    each for a warp, of its two largest innermost loops, in their order, or fewer."""

    num_registers: int
    num_spilled_bytes: int
    num_shared_bytes: int
    loops: tuple[int, ...]

    def are_fine(self, capability: int) -> bool:
        return not self.num_spilled_bytes and self.num_shared_bytes <= 1024 * SHARED_KIB[capability]

    def __str__(self) -> str:
        spilled = f" + {self.num_spilled_bytes} B" if self.num_spilled_bytes else ""
        shared = f"{self.num_shared_bytes / 1024:.1f}"
        return f"{self.num_registers}{spilled}, {shared}, {' and '.join(map(str, self.loops)) or 0}"


def measure(program: Program, capability: int) -> Figures:
    """Compile a program. Raises CalledProcessError where the assembler refuses it."""
    compiled = triton.compile(
        program.source(),
        target=GPUTarget("cuda", capability, 32),
        options={
            "num_warps": program.num_warps,
            "num_stages": program.num_stages,
            "enable_fp_fusion": program.has_fp_fusion,
            "maxnreg": program.max_registers,
        },
    )
    report, assembly = _assemble(compiled.asm["ptx"], assembler(capability))
    registers = int(re.findall(r"Used (\d+) registers", report)[0])
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", report)))
    return Figures(registers, spilled, compiled.metadata.shared, count_loops(assembly))


def assembler(capability: int) -> str:
    return str(TOOLS / ("ptxas" if capability < 100 else "ptxas-blackwell"))


@cache
def _assemble(ptx: str, ptxas: str) -> tuple[str, str]:
    """Return what the assembler tells of a program, and what it made; many cases share one."""
    target = re.findall(r"\.target (\w+)", ptx)[0]
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "program.ptx"), Path(folder, "program.cubin")
        source.write_text(ptx)
        report = _run(ptxas, "-v", f"--gpu-name={target}", str(source), "-o", str(binary)).stderr
        return report, _run(str(TOOLS / "cuobjdump"), "-sass", str(binary)).stdout


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)


def count_loops(assembly: str) -> tuple[int, ...]:
    """Return the numbers of instructions of the two largest loops that have no other within them,
    in their order: a loop ends with a jump back, and is what lies between."""
    jumps = [
        (int(target, 16), int(place, 16))
        for place, target in re.findall(r"/\*(\w+)\*/[^;\n]*\bBRA\S*[^;\n]*? (0x\w+)", assembly)
    ]
    loops = [(first, last) for first, last in jumps if first < last]
    places = [int(place, 16) for place in re.findall(r"/\*([0-9a-f]{4,5})\*/ +\S", assembly)]
    inner = sorted(
        (first, last)
        for first, last in loops
        if not any(first <= one and other < last for one, other in loops)
    )
    counts = [sum(first <= at <= last for at in places) for first, last in inner]
    least = min(sorted(counts)[-2:], default=0)
    return tuple(count for count in counts if count >= least)[:2]
