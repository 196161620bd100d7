"""Tells what the attention kernels take of a GPU, found by compiling them, which needs none:
`python -m tools.triton_figures` prints a table of registers (and bytes of them spilled) and KiB of
shared memory, `--few` one of a few cases alone, `--for 86 120` of other GPUs than 8.0 and 9.0. It
fails where registers spill or shared memory would not suffice.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quire.models.attention.triton.attend_kernel import attend, combine
from quire.models.attention.triton.launch import NUM_WARPS, Form
from quire.models.attention.triton.support import why_not_sizes
from quire.models.attention.triton.tiles import Device
from quire.models.attention.triton.write_kernel import write
from quire.models.config import KVCacheDtype, LayerFacts
from quire.models.kv.kv_codec import choose_codec

MAX_SHARED_BYTES = 99 * 1024
"""The shared memory of a program that GPUs of 8.6 and 8.9 have. 8.0 has 163 KiB, 9.0 has 227."""
CAPABILITIES = [80, 90]
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
COUNTS = ("num_seqs", "num_tokens", "num_splits", "table_stride")
NUMBERS = {"query_starts": "*i32", "context_lens": "*i32", "table": "*i32", "slots": "*i64"}
"""These and COUNTS: kernels are compiled for all their values, and not for aligned ones."""

PLAIN = LayerFacts(index=0, num_kv_heads=8, head_size=128, v_head_size=128, scale=0.1)
LAYERS = {
    "64": (replace(PLAIN, head_size=64, v_head_size=64), 4),
    "64, window, sinks": (
        replace(PLAIN, head_size=64, v_head_size=64, window_size=128, has_sinks=True),
        8,
    ),
    "128": (PLAIN, 4),
    "128, chunks": (replace(PLAIN, chunk_size=8192), 5),
    "192 and 128": (replace(PLAIN, head_size=192), 1),
    "256": (replace(PLAIN, head_size=256, v_head_size=256), 2),
    "256, window, cap": (
        replace(PLAIN, head_size=256, v_head_size=256, window_size=4096, softcap=50.0),
        2,
    ),
    "576, latent": (
        replace(PLAIN, num_kv_heads=1, head_size=576, v_head_size=512, is_latent=True),
        128,
    ),
    "576, latent, 16 heads": (
        replace(PLAIN, num_kv_heads=1, head_size=576, v_head_size=512, is_latent=True),
        16,
    ),
}
"""Widths of keys and values, and query heads that share a K/V head."""
KEPT_AS = (
    (torch.bfloat16, KVCacheDtype.AUTO),
    (torch.bfloat16, KVCacheDtype.FP8_E4M3),
    (torch.bfloat16, KVCacheDtype.INT8),
    (torch.float32, KVCacheDtype.AUTO),
    (torch.float32, KVCacheDtype.FP8_E4M3),
)
Case = tuple[str, torch.dtype, KVCacheDtype]
"""A name of LAYERS, and one of KEPT_AS."""
FEW: tuple[Case, ...] = (
    ("64, window, sinks", torch.bfloat16, KVCacheDtype.AUTO),
    ("128", torch.bfloat16, KVCacheDtype.FP8_E4M3),
    ("256, window, cap", torch.bfloat16, KVCacheDtype.AUTO),
    ("576, latent", torch.bfloat16, KVCacheDtype.INT8),
)


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel as a launch would have it compiled."""

    name: str
    kernel: triton.JITFunction
    types: Mapping[str, str | None]
    constants: Mapping[str, object]
    num_warps: int
    num_stages: int = 3

    def source(self) -> ASTSource:
        """A pointer of type None is not there; all others but NUMBERS are aligned to 16 bytes."""
        signature, attributes = {}, {}
        constants: dict[str, object] = dict(self.constants)
        for index, name in enumerate(self.kernel.arg_names):
            kind = "constexpr" if name in constants else self.types.get(name, "i32")
            if kind is None:
                constants[name] = None
            elif kind not in ("constexpr", "fp32") and name not in (*NUMBERS, *COUNTS):
                attributes[(index,)] = [["tt.divisibility", 16]]
            signature[name] = kind or "constexpr"
        return ASTSource(self.kernel, signature, constants, attributes)


class Figures(NamedTuple):
    num_registers: int
    num_spilled_bytes: int
    num_shared_bytes: int

    @property
    def are_fine(self) -> bool:
        return not self.num_spilled_bytes and self.num_shared_bytes <= MAX_SHARED_BYTES

    def __str__(self) -> str:
        spilled = f" + {self.num_spilled_bytes} B" if self.num_spilled_bytes else ""
        return f"{self.num_registers}{spilled}, {self.num_shared_bytes / 1024:.1f}"


def programs(form: Form) -> Iterator[Program]:
    """Yield the programs of a layer: for long chunks, for one token of each sequence, and for what
    comes after."""
    dtype = NAMES[form.codec.dtype]
    scales = "*bf16" if form.number else None
    kept = "*i8" if form.number else f"*{dtype}"
    types: dict[str, str | None] = {
        **dict.fromkeys(("query", "key", "value", "out"), f"*{dtype}"),
        **dict.fromkeys(("keys", "values"), kept),
        **dict.fromkeys(("key_scales", "value_scales"), scales),
        **dict.fromkeys(("scale", "cap"), "fp32"),
        "sinks": f"*{dtype}" if form.layer.has_sinks else None,
        "log_sums": None,
        **NUMBERS,
    }
    parts: dict[str, str | None] = {**types, "out": "*fp32", "log_sums": "*fp32"}
    tile = form.tile(512)
    constants = form.attend_constants(tile, is_single=False, is_split=False)
    yield Program("chunks", attend, types, constants, tile.num_warps, tile.num_stages)
    tile = form.tile(1)
    constants = form.attend_constants(tile, is_single=True, is_split=True)
    yield Program("tokens", attend, parts, constants, tile.num_warps, tile.num_stages)
    sums = {**types, "sums": "*fp32", "log_sums": "*fp32"}
    yield Program("combine", combine, sums, form.combine_constants(), NUM_WARPS)
    if form.layer.is_latent:
        types |= {"values": None, "value_scales": None}
    yield Program("write", write, types, form.write_constants(), NUM_WARPS)


def measure(program: Program, capability: int) -> Figures:
    compiled = triton.compile(
        program.source(),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": program.num_warps, "num_stages": program.num_stages},
    )
    ptx = compiled.asm["ptx"]
    target = re.findall(r"\.target (\w+)", ptx)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        ptxas = str(TOOLS / ("ptxas" if capability < 100 else "ptxas-blackwell"))
        command = [ptxas, "-v", f"--gpu-name={target}", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = int(re.findall(r"Used (\d+) registers", said)[0])
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    return Figures(registers, spilled, compiled.metadata.shared)


def cases() -> Iterator[Case]:
    for name, (layer, _) in LAYERS.items():
        for dtype, kept_as in KEPT_AS:
            codec = choose_codec(kept_as, dtype)
            if why_not_sizes(codec, layer.head_size, layer.v_head_size) is None:
                yield name, dtype, kept_as


def figures(case: Case, capabilities: Iterable[int]) -> dict[str, Figures]:
    """By kernel and compute capability."""
    name, dtype, kept_as = case
    layer, group = LAYERS[name]
    codec = choose_codec(kept_as, dtype)
    found = {}
    for capability in capabilities:
        device = Device(capability, num_sms=100)
        for program in programs(Form(layer, group * layer.num_kv_heads, codec, 16, device)):
            found[f"{program.name} {capability / 10}"] = measure(program, capability)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--for", type=int, nargs="+", default=CAPABILITIES, dest="capabilities")
    options = parser.parse_args()
    is_fine, heads = True, ""
    for case in FEW if options.few else cases():
        found = figures(case, options.capabilities)
        if not heads:
            heads = " | ".join(found)
            print(f"| widths | kept as | {heads} |\n{'|---' * (2 + len(found))}|")
        name, dtype, kept_as = case
        kept = NAMES[dtype] + ("" if kept_as is KVCacheDtype.AUTO else f", {kept_as}")
        print(f"| {name} | {kept} | {' | '.join(map(str, found.values()))} |", flush=True)
        is_fine &= all(each.are_fine for each in found.values())
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
