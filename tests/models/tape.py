"""A stand-in for CUDA graphs on a CPU: it writes down every operation of torch and every launch of
an interpreted Triton kernel, with the tensors that they read and write, and does these again over
the same tensors. What else was computed on the way, numbers of the host among it, stays as it was
when it was recorded, as in a graph; an operation that tells the host a number is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, Work
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Act = Callable[[], None]
ALLOCATE = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
ASK_FOR_A_NUMBER = (
    *("item", "__bool__", "__int__", "__float__", "__index__", "is_nonzero", "equal", "allclose"),
)
ASK_FOR_ALL = ("tolist", "numpy", "cpu")
OF_UNKNOWN_SIZE = (
    *("nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "bincount"),
)


class Waits(TorchFunctionMode):
    """Refuses what makes the host wait for a GPU: methods that ask for a number of a tensor, or,
    unless `only_numbers`, for all of it."""

    def __init__(self, *, only_numbers: bool = False) -> None:
        super().__init__()
        self._refused = ASK_FOR_A_NUMBER if only_numbers else ASK_FOR_A_NUMBER + ASK_FOR_ALL

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = getattr(func, "__name__", "")
        if name in self._refused and any(True for _ in _tensors(args)):
            raise RuntimeError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done while it is on, and refuses what has a size that only the device
    knows. `acts` are about the kernels that a GPU would be told to run: views and memory that is
    not set are none.

    defers_collectives: whether those of ranks are written down alone, as in a capture, where no
        rank waits for another.
    """

    def __init__(self, *, defers_collectives: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.acts: list[Act] = []
        self._defers_collectives = defers_collectives
        self._is_in_kernel = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if self._is_in_kernel:
            return func(*args, **given)
        if func.namespace == "c10d":
            return self._collect(func, args, given)
        name = func.__name__.split(".")[0]
        if name in ALLOCATE:
            return func(*args, **given)
        if name in OF_UNKNOWN_SIZE or _finds_places(name, args):
            raise RuntimeError(f"the size of what {name} gives waits for the device")
        answer = func(*args, **given)
        self._add(func, args, given, answer)
        return answer

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Write down launches of Triton's kernels too, as whole acts, and refuse to wait."""
        with self._of_kernels(), Waits(), self:
            yield

    def launch(self, compute: Act) -> None:
        """Do what is no operation of torch, and write it down as a whole, as it is of a kernel."""
        self._is_in_kernel = True
        try:
            with torch._C.DisableTorchFunction():
                compute()
        finally:
            self._is_in_kernel = False
        self.acts.append(compute)

    @contextmanager
    def _of_kernels(self) -> Iterator[None]:
        if find_spec("triton") is None:
            yield
            return
        from triton.runtime.interpreter import InterpretedFunction

        run = InterpretedFunction.run

        def noted(kernel: Any, *args: Any, **options: Any) -> None:
            self.launch(lambda: run(kernel, *args, **options))

        with patch.object(InterpretedFunction, "run", noted):
            yield

    def _collect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write down a collective, whose outputs are its first argument."""

        def again() -> None:
            *_, work = func(*args, **kwargs)
            Work.unbox(work).wait()

        self.acts.append(again)
        if self._defers_collectives:
            return args[0], FakeWork().boxed()
        return func(*args, **kwargs)

    def _add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        known = {each.untyped_storage().data_ptr() for each in _tensors((args, kwargs))}
        made = [
            (place, each)
            for place, each in enumerate(_tensors(answer))
            if each.untyped_storage().data_ptr() not in known
        ]
        if not made and not func._schema.is_mutable:
            return  # a view

        def again() -> None:
            anew = list(_tensors(func(*args, **kwargs)))
            for place, kept in made:
                kept.copy_(anew[place])

        self.acts.append(again)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _finds_places(name: str, args: Sequence[Any]) -> bool:
    """Return whether an operation looks for what is true, and gives as much as it finds."""
    if name == "index":
        return any(map(_is_mask, _tensors(args[1])))
    return name == "where" and len(args) == 1
