"""Triton's interpreter, at less than half of its time.

It replaces the functions of `triton.language` at each launch, and again, to no effect, each time a
kernel calls a function of its own. For each value it makes a table of all types of numbers. And it
computes sums and products of int32 once more in int64, to see that they fit, which a GPU does in
debug mode alone.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache


def spare_the_interpreter() -> None:
    """Let all of this be done once, or not at all. Does nothing without Triton, or with one that is
    made otherwise."""
    with suppress(ImportError, AttributeError):
        from triton.runtime import interpreter

        builder = interpreter.interpreter_builder
        builder.options = replace(builder.options, sanitize_overflow=False)
        _replace_once_a_launch()
        _look_types_up_once()


def _replace_once_a_launch() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    replace_all, nothing = interpreter._patch_lang, interpreter._LangPatchScope

    def replace_what_is_not(fn: Callable[..., object]) -> object:
        seen = [each for each in fn.__globals__.values() if each is tl or each is tl.core]
        is_done = bool(seen) and not any(tl.core.is_builtin(each.load) for each in seen)
        return nothing() if is_done else replace_all(fn)

    interpreter._patch_lang = replace_what_is_not


def _look_types_up_once() -> None:
    """The type of NumPy for one of Triton depends on its scalars alone."""
    import triton.language as tl
    from triton.runtime import interpreter

    of_scalar = cache(interpreter._get_np_dtype)
    of_pointer = interpreter._get_np_dtype(tl.pointer_type(tl.int8))

    def numpy_type(of: tl.dtype) -> object:
        scalar = of.scalar
        return of_pointer if scalar.is_ptr() else of_scalar(scalar)

    interpreter._get_np_dtype = numpy_type
