"""Finds the functions of an instruction set in the library, with their C types."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

Signatures = Mapping[str, tuple[type | None, tuple[type, ...]]]
"""By name: the C types of what a function returns, and of what it takes."""


def bind(library: ctypes.CDLL, isa: str, signatures: Signatures) -> list[Callable[..., Any]] | None:
    """In the order of `signatures`. None: the library lacks one of them for `isa`."""
    functions: list[Callable[..., Any]] = []
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"{name}_{isa}", None)
        if function is None:
            return None
        function.restype, function.argtypes = result, arguments
        functions.append(function)
    return functions
