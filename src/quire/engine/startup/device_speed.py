"""Measures the bandwidth and FLOP/s of a device of this machine, with the kernels that serve a
model."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from quire.engine.config import ModelConfig
from quire.engine.devices.placement import Placement, choose_placement
from quire.models.config import ModelDtype
from quire.models.loading.dtype_choice import DTYPES, choose_dtype

MIN_BYTES, MAX_BYTES = 1 << 20, 1 << 28
"""The least and most bytes of weights that are read: as many as the model's, so that caches help as
they do when it is served."""
MANY_ROWS = 256
"""The number of rows at which products reach about their peak rate."""
MEASURE_S = 1.0
"""Seconds of each of the two measurements; the fastest time counts, because other programs use the
machine too."""
TYPICAL_BYTES, TYPICAL_SIZE = 1 << 27, 2048
"""The weights of a machine's own speed, which no model's weights stand behind: more than caches
hold."""


class DeviceSpeed(NamedTuple):
    """The bytes of weights that are read in a second, and the FLOP/s of products."""

    bytes_s: float
    flops_s: float


class MachineSpeed(NamedTuple):
    """The speed of a device of this machine, `cpu` or `cuda`, in the dtype in which it would serve
    a model whose weights are bfloat16."""

    device: str
    dtype: str
    speed: DeviceSpeed


def measure_machine(config: ModelConfig) -> MachineSpeed:
    """Return the speed of the device that `config` chooses, by the kernels that it chooses; no
    weights are read. It takes about 2 * MEASURE_S. Raises ValueError for a device or a kernel that
    this machine has not."""
    placement = choose_placement(config)
    dtype = choose_dtype(placement.dtype, torch.bfloat16, placement.device) or torch.bfloat16
    name = str(dtype).removeprefix("torch.")
    speed = measure_speed(placement, name, TYPICAL_BYTES, TYPICAL_SIZE)
    return MachineSpeed(placement.device.type, name, speed)


def measure_speed(
    placement: Placement, dtype_name: str, weight_bytes: int, size: int
) -> DeviceSpeed:
    """Return the speed of products with matrices [size, size] of `weight_bytes` in all."""
    dtype = DTYPES[ModelDtype(dtype_name)]
    num_bytes = min(max(weight_bytes, MIN_BYTES), MAX_BYTES)
    multiply, packed_bytes = _product(placement, dtype, size)
    num_products = max(num_bytes // packed_bytes, 1)
    products = [multiply] + [_product(placement, dtype, size)[0] for _ in range(num_products - 1)]
    row = torch.ones(1, size, dtype=dtype, device=placement.device)
    rows = torch.ones(MANY_ROWS, size, dtype=dtype, device=placement.device)
    one_s = _fastest_s(placement.device, products, row)
    many_s = _fastest_s(placement.device, products, rows)
    flops = 2.0 * MANY_ROWS * size * size * num_products
    return DeviceSpeed(num_products * packed_bytes / one_s, flops / many_s)


def _product(
    placement: Placement, dtype: torch.dtype, size: int
) -> tuple[Callable[[Tensor], object], int]:
    """Return a product with a weight as the model would keep it, and the bytes of that."""
    weight = torch.randn(size, size, device=placement.device).bfloat16().to(dtype)
    linears = () if placement.kernels is None else placement.kernels.linears
    kernel = next((each for each in linears if each.takes(weight)), None)
    if kernel is None:
        return partial(linear, weight=weight), weight.nbytes
    packed = kernel.pack(weight)
    return partial(kernel.linear, weight=packed, bias=None), packed.packed.nbytes


@torch.inference_mode()
def _fastest_s(
    device: torch.device, products: list[Callable[[Tensor], object]], x: Tensor
) -> float:
    """Return the seconds that all of the products take, each at its best, in turn."""
    fastest_s, end_s = [float("inf")] * len(products), time.perf_counter() + MEASURE_S
    while True:
        for index, product in enumerate(products):
            began_s = time.perf_counter()
            product(x)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            fastest_s[index] = min(fastest_s[index], time.perf_counter() - began_s)
        if time.perf_counter() > end_s:
            return sum(fastest_s)
