"""The functions of decoder.cpp: its structures, field by field, and how they are called."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from quire.models.native.binding import Signatures, bind

ADDRESS, COUNT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class WeightFields(ctypes.Structure):
    _fields_ = (("packed", ADDRESS), ("bias", ADDRESS), ("num_rows", COUNT), ("num_columns", COUNT))


class ScaleFields(ctypes.Structure):
    _fields_ = (("weight", ADDRESS), ("epsilon", NUMBER), ("kind", COUNT))


class LayerFields(ctypes.Structure):
    _fields_ = (
        *((name, WeightFields) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ScaleFields) for name in ("before", "between", "query", "key")),
        *((name, COUNT) for name in ("query_heads", "head_width", "act", "group")),
        ("attention", ADDRESS),
    )


class PlaceFields(ctypes.Structure):
    _fields_ = (
        *(("slots", ADDRESS), ("table", ADDRESS)),
        *(("table_stride", COUNT), ("table_columns", COUNT)),
    )


class DecoderFields(ctypes.Structure):
    _fields_ = (
        *((name, ADDRESS) for name in ("layers", "places", "states", "out", "cosines", "sines")),
        *((name, ADDRESS) for name in ("wanted", "query_starts", "context_lens", "scratch")),
        ("last", ScaleFields),
        *((name, COUNT) for name in ("num_layers", "width", "rotary", "num_tokens", "num_wanted")),
        *((name, COUNT) for name in ("num_seqs", "is_int8", "is_bf16", "num_threads")),
    )


@dataclass(frozen=True, slots=True)
class DecoderKernel:
    """`scratch_bytes` of a step; `run` gives 0, or 1 where a slot or block lies outside."""

    scratch_bytes: Callable[..., int]
    run: Callable[..., int]


SIGNATURES: Signatures = {
    "quire_decoder_scratch": (COUNT, (ctypes.POINTER(DecoderFields),)),
    "quire_decoder": (ctypes.c_int, (ctypes.POINTER(DecoderFields),)),
}


def bind_decoder(library: ctypes.CDLL, isa: str) -> DecoderKernel | None:
    """None: the library has none."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else DecoderKernel(*functions)
