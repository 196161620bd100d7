"""The keys by which Triton keeps compiled kernels, of launches under its interpreter: a launch with
a new key would be compiled first, on a GPU, while requests wait."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

BACKEND = CUDABackend(GPUTarget("cuda", 90, 32))
Key = tuple[str, str]
"""A kernel, and what its arguments and options are specialised for."""


@cache
def _binder(kernel: InterpretedFunction) -> Any:
    """Return what tells the specialisation of a launch's arguments, as Triton makes it on a GPU."""
    compiled = JITFunction(kernel.fn, **kernel.kwargs)
    return create_function_from_signature(compiled.signature, compiled.params, BACKEND)


def _key(
    kernel: InterpretedFunction, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Key:
    bound, specialization, options = _binder(kernel)(*args, **kwargs)
    values = [
        (kind, bound[name] if kind[0] == "constexpr" else None)
        for name, kind in zip(bound, specialization, strict=True)
    ]
    return kernel.fn.__name__, str((values, sorted(options.items())))


@contextmanager
def launched_keys() -> Iterator[set[Key]]:
    """Collect the keys of all launches within the context."""
    keys: set[Key] = set()
    run = InterpretedFunction.run

    def recorded(
        kernel: InterpretedFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any
    ) -> Any:
        keys.add(_key(kernel, args, kwargs))
        return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    with patch.object(InterpretedFunction, "run", recorded):
        yield keys
