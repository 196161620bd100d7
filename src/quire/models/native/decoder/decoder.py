"""The functions of decoder.cpp: its C structures, field by field, and how they are called."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from quire.models.native.binding import Signatures, bind

ADDRESS, COUNT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class WeightFields(ctypes.Structure):
    """A packed linear weight [num_rows, num_columns] and its bias [num_rows], or null."""

    _fields_ = (("packed", ADDRESS), ("bias", ADDRESS), ("num_rows", COUNT), ("num_columns", COUNT))


class NormFields(ctypes.Structure):
    """The weight, epsilon and kind of an RMSNorm; all zero where there is none."""

    _fields_ = (("weight", ADDRESS), ("epsilon", NUMBER), ("kind", COUNT))


class LayerFields(ctypes.Structure):
    """One decoder layer. `group` is its KV cache group, `attention` an `AttentionCall`."""

    _fields_ = (
        *((name, WeightFields) for name in ("qkv", "out", "gate_up", "down")),
        *((name, NormFields) for name in ("before", "between", "query", "key")),
        *((name, COUNT) for name in ("query_heads", "head_size", "act", "group")),
        ("attention", ADDRESS),
    )


class GroupFields(ctypes.Structure):
    """The slots and the block table of a KV cache group in one step."""

    _fields_ = (
        *(("slots", ADDRESS), ("table", ADDRESS)),
        *(("table_stride", COUNT), ("table_columns", COUNT)),
    )


class DecoderFields(ctypes.Structure):
    """One call of the decoder: its layers and the tensors of the step."""

    _fields_ = (
        *((name, ADDRESS) for name in ("layers", "groups", "states", "out", "cos", "sin")),
        *(
            (name, ADDRESS)
            for name in ("logits_indices", "query_starts", "context_lens", "scratch")
        ),
        ("last", NormFields),
        *(
            (name, COUNT)
            for name in ("num_layers", "hidden_size", "rotary_dim", "num_tokens", "num_logits")
        ),
        *((name, COUNT) for name in ("num_seqs", "is_int8", "is_bf16", "num_threads")),
    )


@dataclass(frozen=True, slots=True)
class DecoderKernel:
    """The decoder's two functions, each of which takes one `DecoderFields`.

    `scratch_bytes` returns what `run` needs for the step. `run` returns 0, or 1 where a slot or
    block lies outside of its store.
    """

    scratch_bytes: Callable[..., int]
    run: Callable[..., int]


SIGNATURES: Signatures = {
    "quire_decoder_scratch": (COUNT, (ctypes.POINTER(DecoderFields),)),
    "quire_decoder": (ctypes.c_int, (ctypes.POINTER(DecoderFields),)),
}


def bind_decoder(library: ctypes.CDLL, isa: str) -> DecoderKernel | None:
    """Return the functions for `isa`, or None if the library lacks them."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else DecoderKernel(*functions)
