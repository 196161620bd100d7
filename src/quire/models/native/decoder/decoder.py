"""The functions of decoder.cpp: all layers of a decoder in one call."""

from dataclasses import dataclass
from functools import partial

from quire.models.native.library import Function, Library


@dataclass(frozen=True, slots=True)
class DecoderKernel:
    """The decoder's two functions, each of which takes one `DecoderCall` of `library`.

    `scratch_bytes` returns what `run` needs for the step. `run` returns 0, or 1 where a slot or
    block lies outside of its store.
    """

    library: Library
    scratch_bytes: Function
    run: Function


def bind_decoder(library: Library) -> DecoderKernel:
    """Return the functions."""
    return library.bind(
        partial(DecoderKernel, library), scratch_bytes="quire_decoder_scratch", run="quire_decoder"
    )
