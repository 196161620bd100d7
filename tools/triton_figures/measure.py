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
    """Says what a program takes. `num_registers` are those of a thread."""

    num_registers: int
    num_spilled_bytes: int
    num_shared_bytes: int

    def are_fine(self, capability: int) -> bool:
        return not self.num_spilled_bytes and self.num_shared_bytes <= 1024 * SHARED_KIB[capability]

    def __str__(self) -> str:
        spilled = f" + {self.num_spilled_bytes} B" if self.num_spilled_bytes else ""
        return f"{self.num_registers}{spilled}, {self.num_shared_bytes / 1024:.1f}"


def measure(program: Program, capability: int) -> Figures:
    """Compile a program. Raises CalledProcessError where the assembler refuses it."""
    compiled = triton.compile(
        program.source(),
        target=GPUTarget("cuda", capability, 32),
        options={
            "num_warps": program.num_warps,
            "num_stages": program.num_stages,
            "enable_fp_fusion": program.has_fp_fusion,
        },
    )
    report = _assemble(compiled.asm["ptx"], assembler(capability))
    registers = int(re.findall(r"Used (\d+) registers", report)[0])
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", report)))
    return Figures(registers, spilled, compiled.metadata.shared)


def assembler(capability: int) -> str:
    return str(TOOLS / ("ptxas" if capability < 100 else "ptxas-blackwell"))


@cache
def _assemble(ptx: str, ptxas: str) -> str:
    """Return what the assembler tells of a program; many cases share one."""
    target = re.findall(r"\.target (\w+)", ptx)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [ptxas, "-v", f"--gpu-name={target}", file.name, "-o", "/dev/null"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr
