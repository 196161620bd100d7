"""The kernels of recurrent layers: cases of well-known sizes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import triton

from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.recurrent.triton.convolution_kernel import convolve
from quire.models.recurrent.triton.delta_kernel import apply_delta_rule, norm_heads
from quire.models.recurrent.triton.launch import (
    Launch,
    RuleSizes,
    ScanSizes,
    convolution_launch,
    norm_launch,
    rule_launch,
    scan_launch,
)
from quire.models.recurrent.triton.scan_kernel import scan
from tools.triton_figures.program import NAMES, Case, Kernels, Program

VECTOR = 4


class Net(NamedTuple):
    """A delta net: the channels of its convolution, and its heads. `has_gates`: whether the rule
    computes them."""

    channels: int
    heads: RuleSizes
    has_gates: bool


class Scan(NamedTuple):
    """A layer with a scan: the channels of its convolution, and its sizes."""

    channels: int
    sizes: ScanSizes


LAYERS: dict[str, Net | Scan] = {
    "delta net, 16 of 128 x 128": Net(6144, RuleSizes(16, 16, 128, 128), has_gates=True),
    "delta net, 8 and 16 of 256 x 256": Net(8192, RuleSizes(8, 16, 256, 256), has_gates=True),
    "Kimi, 32 of 128 x 128": Net(12288, RuleSizes(32, 32, 128, 128), has_gates=False),
    "Mamba-2, 48 of 64 x 128": Scan(3328, ScanSizes(1, 48, 64, 128, is_selective=False)),
    "Mamba-2, 128 of 64 x 256": Scan(9216, ScanSizes(8, 128, 64, 256, is_selective=False)),
    "Mamba, 8192 x 16": Scan(8192, ScanSizes(1, 1, 8192, 16, is_selective=True)),
}
"""As Qwen3.5 0.8B, none, Kimi Linear, Granite 4 H, Falcon-H1 34B and Falcon Mamba have them, about.
"""
TAPS = 4
FEW = {
    ("delta net, 16 of 128 x 128", "bf16"): (80, 90),
    ("Mamba-2, 48 of 64 x 128", "bf16"): (90,),
    ("Mamba, 8192 x 16", "bf16"): (90,),
}
"""The capabilities to compile some cases for where there is little time."""
WIDE = ("states", "steps", "rates", "skip")
ROWS = (
    *("rows", "weight", "bias", "out", "query", "key", "value", "beta", "heads", "gate", "b", "c"),
)
OF_STEP = ("starts", "reads", "writes", "sequences")


def programs(layer: Net | Scan, dtype: torch.dtype, _: DeviceProperties) -> Iterator[Program]:
    types: dict[str, str | None] = {
        **dict.fromkeys(ROWS, f"*{NAMES[dtype]}"),
        **dict.fromkeys(WIDE, "*fp32"),
        **dict.fromkeys(OF_STEP, "*i32"),
        **dict.fromkeys(("norm", "step_bias", "log_rates"), "*fp32"),
        **dict.fromkeys(("beta_scale", "epsilon"), "fp32"),
        "decay": "*fp32",
    }
    for name, one_each in (("convolve", False), ("convolve, a token each", True)):
        launch = convolution_launch(
            layer.channels, TAPS, dtype, is_activated=True, has_one_each=one_each
        )
        program = _program(name, convolve, types | {"bias": None}, launch)
        yield replace(program, has_fp_fusion=False)
    if isinstance(layer, Scan):
        yield _program("scan", scan, types, scan_launch(layer.sizes, dtype, VECTOR))
        return
    rule = rule_launch(
        layer.heads, dtype, is_by_channel=not layer.has_gates, has_gates=layer.has_gates
    )
    if layer.has_gates:
        types["decay"] = types["beta"]
    else:
        types |= {"step_bias": None, "log_rates": None}
    yield _program("apply_delta_rule", apply_delta_rule, types, rule)
    norm = norm_launch(layer.heads.heads, layer.heads.value_size, dtype, is_product_rounded=False)
    yield _program("norm_heads", norm_heads, types, norm)


def _program(
    name: str, kernel: triton.JITFunction, types: Mapping[str, str | None], launch: Launch
) -> Program:
    """Return a program that is compiled for no alignment."""
    return Program(
        name,
        kernel,
        types,
        launch.values,
        launch.num_warps,
        unaligned=frozenset(kernel.arg_names),
        max_registers=launch.max_registers,
    )


def cases() -> Iterator[Case]:
    for name, layer in LAYERS.items():
        for dtype in (torch.bfloat16, torch.float32):
            labels = (name, NAMES[dtype])
            yield Case(labels, partial(programs, layer, dtype), FEW.get(labels, ()))


RECURRENT = Kernels(
    "Recurrent layers",
    "Of the layers, the heads with the rows and columns of their states, or channels. One program "
    "computes steps of any kind, but of convolutions.",
    ("layer", "dtype"),
    cases,
)
