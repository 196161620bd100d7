"""Finds where a step takes numbers across from the host to the device or back, and says so.

A captured graph replays launches alone: a number that came from the host stays what it was when the
graph was captured, and one that the host is to read is not there yet.
"""

import linecache
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from quire.models.graphs.agreement import RefusedByRank

FROM_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)
INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
NOT_THE_MODEL = (str(Path(torch.__file__).parent), __file__)


class HostTransferDetector(TorchFunctionMode):
    """Collects the operations that hand numbers from the host to a device, or from it to the host.

    Each may be a copy that waits. `places` has, for each, the function that called it, with its
    file, its line and what is written there. Copies within torch's own C++ code are not seen.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.places: list[str] = []
        self._device_type = device_type

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        given = kwargs or {}
        answer = func(*args, **given)
        inputs = [self._is_on_device(each) for each in tensors((args, given))]
        outputs = [self._is_on_device(each) for each in tensors(answer)]
        is_made_of_numbers = func in FROM_NUMBERS and not inputs
        has_numbers = is_made_of_numbers or (func in INDEXING and has_list(args[1]))
        if any(inputs + outputs) and (has_numbers or not all(inputs + outputs)):
            self.places.append(innermost(traceback.walk_stack(sys._getframe())))
        return answer

    def _is_on_device(self, tensor: Tensor) -> bool:
        return tensor.device.type == self._device_type


class HostTransferError(RuntimeError):
    """Raised after a step in which numbers passed between host and device."""

    def __init__(self, place: str) -> None:
        super().__init__(f"numbers pass between host and device, in {place}")


def reason(error: RuntimeError) -> str:
    """Return what `error` says and the innermost function outside torch that it passed through,
    with its file, its line and what is written there."""
    if isinstance(error, HostTransferError | RefusedByRank):
        return str(error)
    place = innermost(list(traceback.walk_tb(error.__traceback__))[::-1])
    return f"{str(error).partition(chr(10))[0]}, in {place}"


def innermost(calls: Iterable[tuple[FrameType, int]]) -> str:
    """Return the first call outside torch, of `calls` from the innermost on."""
    for frame, number in calls:
        code = frame.f_code
        if not code.co_filename.startswith(NOT_THE_MODEL):
            line = linecache.getline(code.co_filename, number).strip()
            return f"{code.co_qualname} ({Path(code.co_filename).name}:{number}: {line})"
    return "torch"


def tensors(values: object) -> Iterator[Tensor]:
    """Yield the tensors in nested sequences and the values of mappings."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors(list(values.values()))
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for value in values:
            yield from tensors(value)


def has_list(index: object) -> bool:
    """Return whether a tensor's index has a list of numbers in it."""
    return isinstance(index, list) or (isinstance(index, tuple) and any(map(has_list, index)))
