"""The attention kernels: cases of layers and of how K and V are kept."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from quire.models.attention.triton.chunk_kernel import attend_chunks
from quire.models.attention.triton.combine_kernel import combine
from quire.models.attention.triton.launch import NUM_WARPS, AttentionLayer
from quire.models.attention.triton.list_kernel import count_tiles
from quire.models.attention.triton.support import why_not_sizes
from quire.models.attention.triton.tiles import DeviceProperties, num_programs
from quire.models.attention.triton.token_kernel import attend_tokens
from quire.models.attention.triton.write_kernel import write
from quire.models.config import KVCacheDtype, LayerFacts
from quire.models.kv.kv_codec import Codec, choose_codec
from tools.triton_figures.program import NAMES, Case, Kernels, Program

NUMBERS = {"query_starts": "*i32", "context_lens": "*i32", "table": "*i32", "slots": "*i64"}
UNALIGNED = frozenset(
    (*NUMBERS, "num_seqs", "num_tokens", "num_programs", "min_tiles", "table_stride")
)
LONG_CHUNK, LONG_CONTEXT = 512, 32768
"""Tokens of a chunk that fills every tile, and of a context that programs share."""

LEAST_WAITS = 2
"""A tile of K and one of V."""

PLAIN = LayerFacts(index=0, num_kv_heads=8, head_size=128, v_head_size=128, scale=0.1)
LAYERS = {
    "64": (replace(PLAIN, head_size=64, v_head_size=64), 4),
    "64, window, sinks": (
        replace(PLAIN, head_size=64, v_head_size=64, window_size=128, has_sinks=True),
        8,
    ),
    "128": (PLAIN, 4),
    "128, chunks": (replace(PLAIN, chunk_size=8192), 5),
    "192 and 128": (replace(PLAIN, head_size=192), 1),
    "256": (replace(PLAIN, head_size=256, v_head_size=256), 2),
    "256, window, cap": (
        replace(PLAIN, head_size=256, v_head_size=256, window_size=4096, softcap=50.0),
        2,
    ),
    "576, latent": (
        replace(PLAIN, num_kv_heads=1, head_size=576, v_head_size=512, is_latent=True),
        128,
    ),
    "576, latent, 16 heads": (
        replace(PLAIN, num_kv_heads=1, head_size=576, v_head_size=512, is_latent=True),
        16,
    ),
}
"""Widths of keys and values, and query heads that share a K/V head."""
KEPT_AS = (
    (torch.bfloat16, KVCacheDtype.AUTO),
    (torch.bfloat16, KVCacheDtype.FP8_E4M3),
    (torch.bfloat16, KVCacheDtype.INT8),
    (torch.float32, KVCacheDtype.AUTO),
    (torch.float32, KVCacheDtype.FP8_E4M3),
)
FEW = {
    ("64, window, sinks", "bf16"): (80, 90),
    ("128", "bf16, fp8_e4m3"): (80, 90),
    ("192 and 128", "bf16"): (120,),
    ("256", "bf16, int8"): (86,),
    ("256, window, cap", "bf16"): (80, 90),
    ("576, latent", "bf16, int8"): (80, 90),
}
"""The capabilities to compile some cases for where there is little time."""


def _types(form: AttentionLayer) -> dict[str, str | None]:
    """Return the types of the arguments of kernels that read keys and values."""
    dtype = NAMES[form.codec.dtype]
    scales = "*bf16" if form.number else None
    kept = "*i8" if form.number else f"*{dtype}"
    return {
        **dict.fromkeys(("query", "key", "value", "out"), f"*{dtype}"),
        **dict.fromkeys(("keys", "values"), kept),
        **dict.fromkeys(("key_scales", "value_scales"), scales),
        **dict.fromkeys(("scale", "cap"), "fp32"),
        "sinks": f"*{dtype}" if form.layer.has_sinks else None,
        **NUMBERS,
    }


def programs(form: AttentionLayer) -> Iterator[Program]:
    """Yield the programs of a layer: for long chunks, for one token of each sequence, with the list
    before and what comes after."""
    types, dtype = _types(form), NAMES[form.codec.dtype]
    parts: dict[str, str | None] = {
        **types,
        **dict.fromkeys(("sums_of_parts", "log_sums"), "*fp32"),
        "counts": "*i32",
    }
    program = partial(Program, unaligned=UNALIGNED)
    tile = form.tile(LONG_CHUNK)
    constants = form.chunk_constants(tile)
    yield program(
        "chunks",
        attend_chunks,
        types,
        constants,
        tile.num_warps,
        tile.num_stages,
        least_waits=LEAST_WAITS if form.device.loads_ahead and dtype != "fp32" else 0,
    )
    tile = form.tile(1)
    constants = form.token_constants(tile, is_shared=form.is_shared(LONG_CONTEXT))
    yield program(
        "tokens",
        attend_tokens,
        parts,
        constants,
        tile.num_warps,
        tile.num_stages,
        max_registers=form.max_registers(tile),
        least_resident=num_programs(form.layer, form.codec, tile, form.device)
        // form.device.num_sms,
    )
    yield program("count_tiles", count_tiles, parts, form.list_constants(tile), NUM_WARPS)
    yield program("combine", combine, parts, form.combine_constants(tile), NUM_WARPS)
    if form.layer.is_latent:
        types |= {"values": None, "value_scales": None}
    yield program("write", write, types, form.write_constants(), NUM_WARPS)


def cases() -> Iterator[Case]:
    for name, (layer, group) in LAYERS.items():
        for dtype, kept_as in KEPT_AS:
            codec = choose_codec(kept_as, dtype)
            if why_not_sizes(codec, layer.head_size, layer.v_head_size) is None:
                kept = NAMES[dtype] + ("" if kept_as is KVCacheDtype.AUTO else f", {kept_as}")
                of_layer = partial(_programs_on, layer, group, codec)
                yield Case((name, kept), of_layer, FEW.get((name, kept), ()))


def _programs_on(
    layer: LayerFacts, group: int, codec: Codec, device: DeviceProperties
) -> Iterator[Program]:
    return programs(AttentionLayer(layer, group * layer.num_kv_heads, codec, 16, device))


ATTENTION = Kernels(
    "Attention",
    "Of the layers, the widths of keys and values come first; then the dtype of the query, and how "
    "K and V are kept where that is another.",
    ("widths", "kept as"),
    cases,
)
