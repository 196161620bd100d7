"""Devices: the table, and files of users, which are refused with the field that is wrong."""

import json
from pathlib import Path

import msgspec
import pytest

from quire.workbench.simulation.cost.devices import (
    DeviceError,
    DeviceKind,
    DeviceSpec,
    find_device,
    known_devices,
)

GOOD = {
    "name": "mine",
    "kind": "cuda",
    "memory_bytes": 48_000_000_000,
    "bandwidth_bytes_s": 864e9,
    "flops_s": {"bfloat16": 362e12},
}


@pytest.mark.parametrize("name", ["h100", "a100", "l4"])
def test_known_devices_say_where_their_figures_are_from(name: str) -> None:
    device = known_devices()[name]
    assert find_device(name) == device
    assert "datasheet" in device.source and device.kind is DeviceKind.CUDA
    assert device.bytes_s < device.bandwidth_bytes_s
    assert device.flops_of("float16") == device.flops_of("bfloat16") > device.flops_of("float32")


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_a_file_is_read_in_both_forms(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"mine.{suffix}"
    encode = msgspec.json.encode if suffix == "json" else _toml
    path.write_bytes(encode(GOOD))
    assert find_device(str(path)) == msgspec.convert(GOOD, DeviceSpec)


def _toml(device: dict[str, object]) -> bytes:
    """The device with its rates as a table."""
    rates = device["flops_s"]
    assert isinstance(rates, dict)
    plain = [f"{k} = {json.dumps(v)}" for k, v in device.items() if k != "flops_s"]
    return "\n".join([*plain, "[flops_s]", *(f"{k} = {v}" for k, v in rates.items())]).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "tpu"}, r"tpu.*\$\.kind"),
        ({"memory_bytes": 0}, r"> 0.*memory_bytes|>= 1.*memory_bytes"),
        ({"bandwidth_bytes_s": "fast"}, r"got `str` - at `\$\.bandwidth_bytes_s`"),
        ({"flops_efficiency": 1.5}, r"<= 1.0.*flops_efficiency"),
        ({"flops_s": {}}, "flops_s is empty"),
        ({"bandwith": 1}, "unknown field `bandwith`"),
        ({"reserved_bytes": -1}, r">= 0.*reserved_bytes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_field_is_named(change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(DeviceError, match=said) as refused:
        find_device(str(path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("text", ["", "[", "null", "a = "])
def test_what_is_no_device_is_refused(text: str, tmp_path: Path) -> None:
    for suffix in ("json", "toml"):
        path = tmp_path / f"mine.{suffix}"
        path.write_text(text)
        with pytest.raises(DeviceError, match="describes no device"):
            find_device(str(path))


def test_a_name_that_nobody_knows_is_refused_with_those_that_are() -> None:
    with pytest.raises(DeviceError, match="'h1000', must be one of h100, a100, l4, cpu, this, or"):
        find_device("h1000")
