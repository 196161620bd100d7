"""Compiles programs, and reads off registers, what of them spills, shared memory, how many programs
a multiprocessor runs at once, and how long its loops wait for memory."""

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget

from quire.models.attention.triton.tiles import NUM_REGISTERS, WARP_SIZE
from tools.triton_figures.program import Program


class Multiprocessor(NamedTuple):
    """Limits of a multiprocessor: `program_kib` is the most shared memory of a program,
    `shared_kib` that of all programs, each of which takes a KiB more than it asks for."""

    program_kib: int
    shared_kib: int
    num_warps: int
    num_programs: int

    def num_resident(self, num_warps: int, num_registers: int, num_shared_bytes: int) -> int:
        """Return how many programs run at once. A warp has its registers in pieces of 256, eight
        for each of its threads."""
        of_warp = WARP_SIZE * -(-num_registers // 8) * 8
        return min(
            NUM_REGISTERS // (of_warp * num_warps),
            1024 * self.shared_kib // (num_shared_bytes + 1024),
            self.num_warps // num_warps,
            self.num_programs,
        )


# From the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
SM = {
    80: Multiprocessor(163, 164, 64, 32),
    86: Multiprocessor(99, 100, 48, 16),
    89: Multiprocessor(99, 100, 48, 24),
    90: Multiprocessor(227, 228, 64, 32),
    100: Multiprocessor(227, 228, 64, 32),
    120: Multiprocessor(99, 100, 48, 32),
}
"""By compute capability."""
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


class Figures(NamedTuple):
    """Says what a program takes. `num_registers` are those of a thread; `num_resident` programs run
    at once; `loops` are instructions, each for a warp, of its two largest innermost loops, in their
    order, or fewer. `waits`: for each loop that loads ahead, how many loads may be under way while
    it waits for another; 0 is a loop whose loads overlap nothing."""

    num_registers: int
    num_spilled_bytes: int
    num_shared_bytes: int
    num_resident: int
    loops: tuple[int, ...]
    waits: tuple[int, ...]

    def faults(self, program: Program, capability: int) -> list[str]:
        """Return what falls short of what the program needs."""
        found = []
        if self.num_spilled_bytes:
            found.append(f"{self.num_spilled_bytes} B of registers spill")
        if self.num_shared_bytes > 1024 * SM[capability].program_kib:
            found.append(f"shared memory is over {SM[capability].program_kib} KiB")
        if self.num_resident < program.least_resident:
            counted = program.least_resident
            found.append(f"{self.num_resident} programs run at once, {counted} are counted on")
        if self.waits and min(self.waits) < program.least_waits:
            found.append(f"a loop waits until {min(self.waits)} loads are under way")
        return found

    def __str__(self) -> str:
        spilled = f" + {self.num_spilled_bytes} B" if self.num_spilled_bytes else ""
        shared = f"{self.num_shared_bytes / 1024:.1f}"
        loops = " and ".join(map(str, self.loops)) or "0"
        waits = f", waits {' and '.join(map(str, self.waits))}" if self.waits else ""
        return f"{self.num_registers}{spilled}, {shared}, {self.num_resident}x, {loops}{waits}"


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
    shared = compiled.metadata.shared
    resident = SM[capability].num_resident(program.num_warps, registers, shared)
    waits = read_waits(compiled.asm["ttgir"])
    return Figures(registers, spilled, shared, resident, count_loops(assembly), waits)


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


def read_waits(intermediate: str) -> tuple[int, ...]:
    """Return for each loop over tiles that waits for loads the fewest that it lets go on."""
    open_loops: list[tuple[int, list[int]]] = []
    waits = []
    for line in intermediate.splitlines():
        depth = len(line) - len(line.lstrip())
        if "scf.for" in line:
            open_loops.append((depth, []))
        elif open_loops and line.lstrip().startswith("}") and depth == open_loops[-1][0]:
            waits.append(open_loops.pop()[1])
        elif open_loops and "async_wait" in line:
            open_loops[-1][1].extend(map(int, re.findall(r"num = (\d+)", line)))
    return tuple(min(each) for each in waits if each)
