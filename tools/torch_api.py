"""Holds an installed torch to the calls that captures and their memory make of it.

    python tools/torch_api.py        of the Python that is to be looked at, which needs torch alone

A torch that is newer or older may have renamed what only a GPU would call. Names are looked up, and
arguments bound to signatures where torch tells them; nothing is called, so that no GPU is needed.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from types import SimpleNamespace

import torch

ANY = SimpleNamespace()
"""An argument of no meaning."""


def given(*args: object, **kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    return args, kwargs


CALLS = {
    "torch.cuda.CUDAGraph": given(),
    "torch.cuda.CUDAGraph.capture_begin": given(
        ANY, pool=(0, 1), capture_error_mode="thread_local"
    ),
    "torch.cuda.CUDAGraph.capture_end": given(ANY),
    "torch.cuda.CUDAGraph.replay": given(ANY),
    "torch.cuda.CUDAGraph.reset": given(ANY),
    "torch.cuda.Event": given(enable_timing=True),
    "torch.cuda.MemPool": given(),
    "torch.cuda.MemPool.id": None,
    "torch.cuda.MemPool.use_count": given(ANY),
    "torch.cuda.Stream": given(ANY),
    "torch.cuda.Stream.wait_event": given(ANY, ANY),
    "torch.cuda.Stream.wait_stream": given(ANY, ANY),
    "torch.cuda.current_device": given(),
    "torch.cuda.current_stream": given(ANY),
    "torch.cuda.default_generators": None,
    "torch.cuda.device": given(0),
    "torch.cuda.empty_cache": given(),
    "torch.cuda.get_sync_debug_mode": given(),
    "torch.cuda.max_memory_allocated": given(ANY),
    "torch.cuda.mem_get_info": given(ANY),
    "torch.cuda.memory_allocated": given(ANY),
    "torch.cuda.memory_reserved": given(ANY),
    "torch.cuda.reset_peak_memory_stats": given(ANY),
    "torch.cuda.set_sync_debug_mode": given(2),
    "torch.cuda.stream": given(ANY),
    "torch.cuda.synchronize": given(ANY),
    "torch.Generator.clone_state": given(ANY),
    "torch.Generator.graphsafe_set_state": given(ANY, ANY),
}
"""Names, and arguments as they are given; None for what is not called."""
VARLEN = "torch.nn.attention.varlen", "varlen_attn"
VARLEN_CALL = given(*[ANY] * 7, scale=1.0, window_size=(-1, 0), enable_gqa=True)
POOL_CALLS = ("_cuda_endAllocateToPool", "_cuda_releasePool")
"""Private functions of builds for CUDA, called where they are there."""


def faults() -> Iterator[str]:
    """Yield what of the calls this torch does not take, a line each."""
    for name, arguments in CALLS.items():
        try:
            found = reduce(getattr, name.split(".")[1:], torch)
        except AttributeError:
            yield f"{name}: there is none"
            continue
        if arguments is not None:
            yield from _unbound(name, found, arguments)
    yield from _varlen_faults()


def _unbound(
    name: str, function: object, arguments: tuple[tuple[object, ...], dict[str, object]]
) -> Iterator[str]:
    args, kwargs = arguments
    if not callable(function):
        yield f"{name}: it is not called"
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it is not Python's, and does not tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        yield f"{name}{signature}: {error}"


def _varlen_faults() -> Iterator[str]:
    """Yield nothing for a torch without it, which Quire then does without."""
    module, name = VARLEN
    try:
        function: Callable[..., object] = getattr(__import__(module, fromlist=[name]), name)
    except ImportError:
        return
    yield from _unbound(name, function, VARLEN_CALL)


def main() -> int:
    """Return 1 if anything is not as it is called."""
    found = list(faults())
    there = [name for name in POOL_CALLS if hasattr(torch._C, name)]
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    print(f"torch {torch.__version__}, {built}; {', '.join(there) or 'no private calls of pools'}")
    print(*(found or [f"all {len(CALLS)} names are as they are called"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
