"""Keeps packed weights in a file, so that the next start of the same model reads them as they are.

    DIR/<key>.safetensors           one model as one set of kernels has it packed
    DIR/.<key>.<random>.tmp         one that is being written, or that a kill left

The tensors are those that a kernel packed; what they mean is in the file's metadata, with a
checksum of each. A file that cannot be used is told, and made anew.
"""

import ctypes
import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from xxhash import xxh3_128_hexdigest

from quire.models.layers.linears import MIB, PackedLinears, adopt_packed, weight_names
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checks.own_text import Loss
from quire.models.native.packed_weight import PackedWeight

logger = logging.getLogger(__name__)

FORMAT = 1
"""The version of the file format; files of other versions are not found."""
METADATA = "quire"
OUTLIERS = "/outliers"
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32"}
ALIGNMENT = 64
MAX_WRITE_S = 600.0
"""A file that nothing was written to for so long was left by a kill."""
UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, TypeError)


class PackingResult(NamedTuple):
    """The packed weights of a file, and the loss of their quantization, if known."""

    packed: PackedLinears
    loss: Loss | None


@dataclass(frozen=True, slots=True)
class PackedWeightsFile:
    """The file of one model's packed weights; its name says which model, kernels and version."""

    path: Path

    def adopt(self, module: nn.Module, kernels: ModelKernels) -> PackingResult | None:
        """Give a module the weights of the file. Returns None without a file, or, after a warning,
        if it is unusable."""
        began = time.monotonic()
        try:
            kept, loss = _read(self.path)
            packed = adopt_packed(module, (*kernels.heads, *kernels.linears), kept)
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            logger.warning("packed weights in %s are made anew: %s", self.path, error)
            return None
        logger.info(
            "read %d packed weights, %.1f MiB, in %.1f s from %s",
            len(kept),
            sum(weight.packed.nbytes for _, weight in kept.values()) / MIB,
            time.monotonic() - began,
            self.path,
        )
        return PackingResult(packed, loss)

    def keep(self, module: nn.Module, packed: PackedLinears, loss: Loss | None) -> None:
        """Write the packed weights of a module as they are before any are joined. A warning says
        where that fails."""
        began, names = time.monotonic(), weight_names(module)
        tensors: dict[str, Tensor] = {}
        weights: dict[str, object] = {}
        for each in packed.shared_weights:
            name, weight = names[id(each.owners[0])], each.weight
            tensors[name] = weight.packed.detach()
            if weight.outliers is not None:
                tensors[name + OUTLIERS] = weight.outliers
            weights[name] = [type(each.kernel).__name__, weight.num_rows, weight.num_columns]
        self._remove_leftovers()
        temporary = self.path.with_name(f".{self.path.stem}.{secrets.token_hex(8)}.tmp")
        try:
            _write(temporary, tensors, {"weights": weights, "loss": loss})
            os.replace(temporary, self.path)
        except OSError as error:
            logger.warning("packed weights cannot be kept in %s: %s", self.path, error)
            with suppress(OSError):
                temporary.unlink()
            return
        seconds = time.monotonic() - began
        logger.info("kept %d packed weights in %s in %.1f s", len(weights), self.path, seconds)

    def _remove_leftovers(self) -> None:
        """Remove files of this model that a kill left half written."""
        with suppress(OSError):
            for left in self.path.parent.glob(f".{self.path.stem}.*.tmp"):
                if time.time() - left.stat().st_mtime > MAX_WRITE_S:
                    left.unlink()


def _read(path: Path) -> tuple[dict[str, tuple[str, PackedWeight]], Loss | None]:
    """Return the weights of a file by name, each after the name of its kernel. They lie in the
    mapped file. Raises one of UNREADABLE."""
    if not path.exists():
        raise FileNotFoundError(path)
    with safe_open(path, framework="pt") as opened:
        told = json.loads(opened.metadata()[METADATA])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    for name, tensor in tensors.items():
        if _checksum(tensor) != told["checksums"][name]:
            raise ValueError(f"the checksum of {name} is another")
    loss = told["loss"]
    kept = {
        name: (kernel, PackedWeight(tensors[name], *shape, outliers=tensors.get(name + OUTLIERS)))
        for name, (kernel, *shape) in told["weights"].items()
    }
    return kept, loss and Loss(*loss)


def _write(path: Path, tensors: Mapping[str, Tensor], told: Mapping[str, object]) -> None:
    """Write tensors in the safetensors format, without a copy of them in memory. Raises OSError."""
    checksums = {name: _checksum(tensor) for name, tensor in tensors.items()}
    header: dict[str, object] = {
        "__metadata__": {METADATA: json.dumps({**told, "checksums": checksums})}
    }
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        shape, dtype = list(tensor.shape), DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(_bytes_of(tensor))
        file.flush()
        os.fsync(file.fileno())


def _checksum(tensor: Tensor) -> str:
    return xxh3_128_hexdigest(_bytes_of(tensor))


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return a view of the bytes of a contiguous tensor on the CPU."""
    assert tensor.is_contiguous(), "kernels pack so"
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))
