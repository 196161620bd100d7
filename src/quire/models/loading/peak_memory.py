"""Counts the memory that torch's operations allocate, on any device, the meta device too."""

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from torch._ops import OpOverload


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, while active, the bytes of the storages that operations make, until they are freed.

    num_bytes: those that are alive now. peak_bytes: the most that ever were.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: "OpOverload[..., object]",
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        inputs = {id(each) for each in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in inputs and id(storage) not in self._known:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._known.add(id(storage))
        self.num_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        weakref.finalize(storage, self._freed(id(storage), storage.nbytes()))

    def _freed(self, number: int, num_bytes: int) -> Callable[[], None]:
        def free() -> None:
            self._known.discard(number)
            self.num_bytes -= num_bytes

        return free


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [each.untyped_storage() for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]
