"""Finds and opens the library of C++ kernels that the installation has built, if it could.

Each kernel is in it once for every instruction set of ISAS that its machine knows; `library()` is
the one to use here. Its threads are those of torch's own OpenMP runtime: a second one beside it
would fight for the same cores.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import torch

from quire.models.native.abi import Abi, AbiMismatch, read_abi
from quire.models.optimizations import Disabled

logger = logging.getLogger(__name__)

ISAS = ("portable", "avx2", "avx512", "amx")
"""The instruction sets, in the order of `quire_best_isa`. avx512 has bfloat16 dot products, amx is
that and tiles."""
HERE = Path(__file__).parent

NO_LIBRARY = (
    "Quire's C++ kernels are not here, so attention on this CPU runs in PyTorch, several times "
    "slower: have a C++17 compiler (g++ or clang++) and install Quire again"
)
FOREIGN_LIBRARY = (
    "Quire's C++ kernels are another version's and stay unused, so attention on this CPU runs in "
    "PyTorch, several times slower: install Quire again"
)
Function = Callable[..., int]
"""A function of the library. One of void returns None, which nobody reads."""
Kernel = TypeVar("Kernel")


@dataclass(frozen=True, slots=True)
class Library:
    """The opened library.

    path: the file.
    isa: the instruction set whose kernels are called, one of ISAS.
    isas: those that can run here.
    has_threads: torch's OpenMP runtime was found.
    """

    path: Path
    handle: ctypes.CDLL
    abi: Abi
    isa: str
    isas: tuple[str, ...]
    has_threads: bool

    def of(self, isa: str) -> "Library":
        """Return the library for another instruction set. Raises ValueError if it cannot run."""
        if isa not in self.isas:
            raise ValueError(f"{isa} does not run here, but {', '.join(self.isas)}")
        return replace(self, isa=isa)

    def without(self, disabled: Disabled) -> "Library":
        """Return the library for its own instruction set, or for the best one below those that are
        switched off. The portable kernels are always there."""
        known = self.isas[: self.isas.index(self.isa) + 1]
        return self.of(tuple(takewhile(lambda isa: isa not in disabled, known))[-1])

    def struct(self, name: str) -> type[ctypes.Structure]:
        """Return a structure of abi.h."""
        return self.abi.structs[name]

    def has(self, function: str) -> bool:
        """Return whether the instruction set has a function of abi.h."""
        return hasattr(self.handle, f"{function}_{self.isa}")

    def function(self, name: str) -> Function:
        """Return a function of abi.h. Raises AttributeError if the instruction set lacks it."""
        found = getattr(self.handle, f"{name}_{self.isa}")
        found.restype, found.argtypes = self.abi.signatures[name]
        function: Function = found
        return function

    def bind(self, kernel: Callable[..., Kernel], **functions: str) -> Kernel:
        """Return `kernel` of functions of abi.h, given by their names."""
        return kernel(**{field: self.function(name) for field, name in functions.items()})

    @property
    def num_threads(self) -> int:
        """The threads that kernels run on: as many as torch uses."""
        return torch.get_num_threads() if self.has_threads else 1


@cache
def library() -> Library | None:
    """Open the library once, and log its instruction set; None, and a warning, if there is none."""
    path = next((p for p in map(_path, EXTENSION_SUFFIXES) if p.exists()), None)
    if path is None:
        logger.warning(NO_LIBRARY)
        return None
    return open_library(path)


def open_library(path: Path) -> Library | None:
    """Open the library at `path`; None, and a warning, if it is not that of this version."""
    _share_openmp()
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        logger.warning("%s (%s)", NO_LIBRARY, error)
        return None
    try:
        abi = read_abi(handle)
        best, has_threads = handle.quire_best_isa(), bool(handle.quire_has_threads())
    except (AttributeError, AbiMismatch, OSError) as error:
        logger.warning("%s (%s)", FOREIGN_LIBRARY, error)
        return None
    isas = tuple(isa for isa in ISAS[: best + 1] if hasattr(handle, f"quire_attend_{isa}"))
    opened = Library(path, handle, abi, isas[-1], isas, has_threads)
    threads = "torch's threads" if has_threads else "one thread: torch's OpenMP was not found"
    logger.info("C++ kernels for %s, on %s", opened.isa, threads)
    return opened


def _path(suffix: str) -> Path:
    return HERE / f"kernels{suffix}"


def _share_openmp() -> None:
    """Make the OpenMP runtime that torch has loaded visible to the library; load no other."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return
    home = Path(torch.__file__).parent
    bundled = [
        path
        for folder in (home / "lib", home.parent / "torch.libs")
        for name in ("libgomp*", "libomp*", "libiomp*")
        for path in folder.glob(name)
    ]
    for name in (*map(str, bundled), "libgomp.so.1"):
        try:
            ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_GLOBAL)
            return
        except OSError:
            continue
