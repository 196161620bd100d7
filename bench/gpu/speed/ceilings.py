"""The ceilings of a device, that speed is stated beside: what a copy, a read, large products and
launches take at best."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.gpu.check import Finding, Place
from bench.gpu.speed.floor import Rates
from bench.gpu.speed.timing import Call, elapsed_s, time_captured, time_launched

FILE = "ceilings.json"
NUM_FLOATS, REHEARSED_FLOATS = 1 << 30, 1 << 16
WIDTH, REHEARSED_WIDTH = 8192, 64
FP8_CAPABILITY = (8, 9)
"""GPUs from here on multiply numbers of eight bits, which torch offers under a private name."""
NUM_LAUNCHES = 1000


@dataclass(frozen=True, slots=True)
class DeviceCeilings:
    """The best that was seen of a device.

    copy_gb_s: 10^9 bytes a second, those read and those written both counted.
    read_gb_s: 10^9 bytes a second, of 4 GiB summed up, or their largest found.
    *_tflop_s: 10^12 operations a second of square products of random numbers; None where the device
        has no such product. fp32 is without tensor cores.
    *_launch_us: microseconds of one launch: an operation of torch's on one number, an empty Triton
        kernel, and an operation within a CUDA graph.
    """

    copy_gb_s: float
    read_gb_s: float
    bf16_tflop_s: float
    fp32_tflop_s: float
    fp8_tflop_s: float | None
    torch_launch_us: float
    triton_launch_us: float
    graph_launch_us: float

    @property
    def rates(self) -> Rates:
        """The rates of reading, and of products of bfloat16."""
        return Rates(self.read_gb_s, self.bf16_tflop_s)


def check_ceilings(place: Place) -> Iterator[Finding]:
    """Measure the ceilings, and keep them for the other checks of the run."""
    found = measure_ceilings(place)
    save(found, place.folder)
    yield Finding("ceilings", asdict(found))
    yield _holds(place)


def ceilings(place: Place) -> DeviceCeilings:
    """Return those that this run measured, or measure them."""
    path = place.folder / FILE
    if path.exists():
        return DeviceCeilings(**json.loads(path.read_text()))
    found = measure_ceilings(place)
    save(found, place.folder)
    return found


def save(found: DeviceCeilings, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps(asdict(found)))


@torch.inference_mode()
def measure_ceilings(place: Place) -> DeviceCeilings:
    copy_gb_s, read_gb_s = _memory(place)
    torch_us, triton_us, graph_us = _launches(place)
    return DeviceCeilings(
        copy_gb_s=copy_gb_s,
        read_gb_s=read_gb_s,
        bf16_tflop_s=_product(place, torch.bfloat16),
        fp32_tflop_s=_product(place, torch.float32),
        fp8_tflop_s=_fp8_product(place),
        torch_launch_us=torch_us,
        triton_launch_us=triton_us,
        graph_launch_us=graph_us,
    )


def _memory(place: Place) -> tuple[float, float]:
    """Return the gigabytes a second of a copy, and of the fastest of some reductions."""
    num_floats = REHEARSED_FLOATS if place.is_rehearsal else NUM_FLOATS
    source = torch.randn(num_floats, device=place.device)
    target = torch.empty_like(source)
    copy_s = time_launched(place.device, lambda: target.copy_(source)).median_s
    halves = source.view(torch.bfloat16)
    reads: list[Call] = [source.sum, source.amax, source.view(torch.int32).amax, halves.amax]
    read_s = min(time_launched(place.device, read).median_s for read in reads)
    return 2 * source.nbytes / copy_s / 1e9, source.nbytes / read_s / 1e9


def _holds(place: Place) -> Finding:
    """See that memory holds what was written into it, also after a copy."""
    num_words = REHEARSED_FLOATS if place.is_rehearsal else NUM_FLOATS
    source = torch.arange(num_words, dtype=torch.int32, device=place.device)
    target = torch.empty_like(source).copy_(source)
    is_right = torch.equal(target, source) and int(target[-1]) == num_words - 1
    figures = {"num_bytes": 2 * source.nbytes}
    return Finding("memory", figures, None if is_right else "it holds other numbers than written")


def _product(place: Place, dtype: torch.dtype) -> float:
    """Return 10^12 operations a second. Zeros would be multiplied faster than other numbers."""
    width = REHEARSED_WIDTH if place.is_rehearsal else WIDTH
    one, other = (torch.randn(width, width, device=place.device).to(dtype) for _ in range(2))
    return _tflop_s(place, partial(torch.mm, one, other), width)


def _fp8_product(place: Place) -> float | None:
    product = getattr(torch, "_scaled_mm", None)
    if product is None or place.device.type == "cpu":
        return None
    if torch.cuda.get_device_capability(place.device) < FP8_CAPABILITY:
        return None
    numbers = [torch.randn(WIDTH, WIDTH, device=place.device) for _ in range(2)]
    one, other = (each.to(torch.float8_e4m3fn) for each in numbers)
    scale = torch.ones((), device=place.device)

    def multiply() -> Tensor:
        out: Tensor = product(
            one, other.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )
        return out

    try:
        return _tflop_s(place, multiply, WIDTH)
    except (RuntimeError, TypeError):  # a private function may change
        return None


def _tflop_s(place: Place, multiply: Call, width: int) -> float:
    return 2.0 * width**3 / time_launched(place.device, multiply).median_s / 1e12


def _launches(place: Place) -> tuple[float, float, float]:
    """Return microseconds of an operation of torch's, of a Triton kernel, and of one in a graph."""
    from bench.gpu.speed.empty_kernel import empty

    number = torch.zeros(1, device=place.device)
    one = partial(number.add_, 1)
    kernel = partial(empty[(1,)], number)
    num_launches = 10 if place.is_rehearsal else NUM_LAUNCHES

    def many(call: Call) -> float:
        call()
        taken_s = elapsed_s(place.device, lambda: [call() for _ in range(num_launches)])
        return 1e6 * taken_s / num_launches

    return many(one), many(kernel), 1e6 * time_captured(place.device, [one]).median_s
