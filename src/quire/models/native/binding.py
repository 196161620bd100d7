"""Finds the functions of an instruction set in the library, with their C types."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

Signatures = Mapping[str, tuple[type | None, tuple[type, ...]]]
"""For each function's name the C type of its result, and those of its arguments."""


def bind(library: ctypes.CDLL, isa: str, signatures: Signatures) -> list[Callable[..., Any]] | None:
    """Return the functions of `signatures` in their order, or None if one is missing for `isa`."""
    functions: list[Callable[..., Any]] = []
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"{name}_{isa}", None)
        if function is None:
            return None
        function.restype, function.argtypes = result, arguments
        functions.append(function)
    return functions
