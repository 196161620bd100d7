"""Describes a kernel as a launch has it compiled, and the kernels of a package as cases of such."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import triton
from triton.compiler import ASTSource

from quire.models.attention.triton.tiles import DeviceProperties

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""Dtypes as Triton's signatures have them."""
ALIGNMENT = 16
"""It counts bytes of a pointer, and units of a number."""


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel as a launch would have it compiled.

    types: of arguments, as in Triton's signatures: "*bf16", "i64"; None for a pointer that is not
    there. An argument that is not named is an "i32".
    constants: the `tl.constexpr` arguments.
    unaligned: arguments of any value; others are multiples of ALIGNMENT.
    max_registers: those that a thread may have, or None to leave it to the assembler.
    has_fp_fusion: whether a product and a sum may become one operation.
    least_resident: programs that a launch counts on running at once on a multiprocessor.
    least_waits: loads that its loops over keys must let go on while they wait for one.
    """

    name: str
    kernel: triton.JITFunction
    types: Mapping[str, str | None]
    constants: Mapping[str, object]
    num_warps: int
    num_stages: int = 3
    unaligned: frozenset[str] = field(default_factory=frozenset)
    has_fp_fusion: bool = True
    max_registers: int | None = None
    least_resident: int = 1
    least_waits: int = 0

    def source(self) -> ASTSource:
        signature, attributes = {}, {}
        constants = dict(self.constants)
        for index, name in enumerate(self.kernel.arg_names):
            kind = "constexpr" if name in constants else self.types.get(name, "i32")
            if kind is None:
                constants[name] = None
            elif kind not in ("constexpr", "fp32") and name not in self.unaligned:
                attributes[(index,)] = [["tt.divisibility", ALIGNMENT]]
            signature[name] = kind or "constexpr"
        return ASTSource(self.kernel, signature, constants, attributes)


class Case(NamedTuple):
    """A case that a package's kernels are compiled for.

    labels: by the headings of its `Kernels`.
    programs: of a device; their names are the same in all cases of a package.
    few: the compute capabilities for which `--few` compiles it; most cases have none.
    """

    labels: tuple[str, ...]
    programs: Callable[[DeviceProperties], Iterable[Program]]
    few: Sequence[int] = ()


class Kernels(NamedTuple):
    """The kernels of a package. `about` tells in Markdown what the labels say."""

    title: str
    about: str
    headings: tuple[str, ...]
    cases: Callable[[], Iterable[Case]]
