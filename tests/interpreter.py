"""Triton's interpreter, at two thirds of its time.

It replaces the functions of `triton.language` at each launch, and again, to no effect, each time a
kernel calls a function of its own.
"""

from collections.abc import Callable
from contextlib import suppress


def replace_once_a_launch() -> None:
    """Let the functions be replaced only where they are not. Does nothing without Triton, or with
    one that is made otherwise."""
    with suppress(ImportError, AttributeError):
        import triton.language as tl
        from triton.runtime import interpreter

        replace, nothing = interpreter._patch_lang, interpreter._LangPatchScope

        def replace_what_is_not(fn: Callable[..., object]) -> object:
            seen = [each for each in fn.__globals__.values() if each is tl or each is tl.core]
            is_done = bool(seen) and not any(tl.core.is_builtin(each.load) for each in seen)
            return nothing() if is_done else replace(fn)

        interpreter._patch_lang = replace_what_is_not
