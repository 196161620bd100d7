"""Devices by what their makers say of them: a table of known ones, and files of the same form."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from quire.workbench.simulation.cost.cost_file import BUILT_IN

THIS, CPU = "this", "cpu"
"""Names of devices that are measured: this machine's GPU, or its CPU where it has none; its CPU."""
MAX_FILE_BYTES = 1 << 20

Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
NumBytes = Annotated[int, msgspec.Meta(ge=0)]


class DeviceKind(StrEnum):
    """The kinds of device, as torch names them."""

    CPU = "cpu"
    CUDA = "cuda"


class DeviceError(Exception):
    """A device that no plan can be made for; the text names the field, what is wrong with it, and
    what would be right."""


class DeviceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The memory and the rates of a device.

    memory_bytes: all of its memory. reserved_bytes: what is taken of it before any model is loaded.
    bandwidth_bytes_s, flops_s: the peak rates, the latter by dtype. The efficiencies are the shares
        of these that kernels reach.
    step_overhead_s, layer_overhead_s, seq_overhead_s: what a step takes beside, in all, for each
        layer, and for each sequence.
    compute_capability, num_multiprocessors: of a GPU; they decide what attention keeps for itself.
    source: where the figures are from.
    """

    name: str
    kind: DeviceKind
    memory_bytes: Annotated[int, msgspec.Meta(gt=0)]
    bandwidth_bytes_s: Positive
    flops_s: dict[str, Positive]
    reserved_bytes: NumBytes = 0
    bandwidth_efficiency: Share = 1.0
    flops_efficiency: Share = 1.0
    step_overhead_s: Seconds = 0.0
    layer_overhead_s: Seconds = 0.0
    seq_overhead_s: Seconds = 0.0
    compute_capability: Annotated[int, msgspec.Meta(ge=80)] = 80
    num_multiprocessors: Annotated[int, msgspec.Meta(gt=0)] = 108
    source: str = ""

    def flops_of(self, dtype: str) -> float:
        """Return the FLOP/s that kernels reach in a dtype. Raises DeviceError if it is unknown."""
        if dtype not in self.flops_s:
            known = ", ".join(sorted(self.flops_s))
            raise DeviceError(
                f"{self.name} has no flops_s of {dtype}, which the model computes in: add it to "
                f"those of {known}, or pass --dtype"
            )
        return self.flops_s[dtype] * self.flops_efficiency

    @property
    def bytes_s(self) -> float:
        """The bytes a second that kernels read."""
        return self.bandwidth_bytes_s * self.bandwidth_efficiency


def known_devices() -> Mapping[str, DeviceSpec]:
    """Return the devices of the table by their names."""
    table = (BUILT_IN / "devices.toml").read_bytes()
    return msgspec.toml.decode(table, type=dict[str, DeviceSpec])


def find_device(name: str) -> DeviceSpec:
    """Return the device of that name, or the one that a file describes. Raises DeviceError."""
    known = known_devices()
    if name in known:
        return known[name]
    path = Path(name)
    if not path.is_file():
        names = ", ".join((*known, CPU, THIS))
        raise DeviceError(f"--device is {name!r}, must be one of {names}, or a file that is there")
    return read_device(path)


def read_device(path: Path) -> DeviceSpec:
    """Return the device that a file in TOML or JSON (`.json`) describes. Raises DeviceError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DeviceError(f"{path} is larger than {MAX_FILE_BYTES} bytes: it holds no device")
        data = path.read_bytes()
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        device: DeviceSpec = decode(data, type=DeviceSpec)
    except (OSError, ValueError) as error:
        raise DeviceError(f"{path} describes no device: {error}") from None
    if not device.flops_s:
        raise DeviceError(f"{path} describes no device: flops_s is empty, must have a dtype's rate")
    return device
