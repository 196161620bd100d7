"""Tells where FlashInfer can be had, and for which layers; it is imported only where it is asked
for."""

from collections import Counter
from functools import lru_cache

import torch
from torch import Tensor

from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.models.attention.backend import Site
from quire.models.attention.flashinfer.api import FlashInfer, load, why_not_installed
from quire.models.attention.flashinfer.kind import (
    DTYPES,
    TENSOR_CORE_GROUP,
    Compiled,
    Kind,
    compiled_of,
    why_not_layer,
)
from quire.models.attention.flashinfer.pages import Pages
from quire.models.attention.flashinfer.wrappers import MIB, Target, build_chunks, build_singles
from quire.models.attention.triton.support import why_not as why_not_triton
from quire.models.config import LayerFacts
from quire.models.kv.kv_codec import Codec

NOT_COMPILED = "MissingJITCacheError"
"""FlashInfer's error where it is told not to compile what it would have to."""
MOST_KINDS = 64
TRIAL_BYTES = 16 * MIB
"""The workspace of a plan of one token, of which nothing is cut."""


def why_not(site: Site) -> str | None:
    """Return why it cannot run there, in words, or None if it can.

    Triton's kernels must run there too: they write keys and values, and attend in other layers.
    """
    return why_not_installed() or why_not_triton(site) or why_not_numbers(site.codec)


def why_not_numbers(codec: Codec) -> str | None:
    """Return why it cannot compute with a store's numbers, in words, or None if it can."""
    if codec.is_quantised:
        return "it reads keys and values as the model has them (--kv-cache-dtype auto)"
    if codec.dtype not in DTYPES:
        return "it computes bfloat16 and float16 (--dtype)"
    return None


def why_not_taken(layer: LayerFacts, site: Site) -> str | None:
    """Return why Triton computes a layer, in words, or None if FlashInfer does."""
    why = why_not_layer(layer)
    if why is not None:
        return why
    return why_not_compiled(load(), compiled_of(layer), site.codec.dtype, site.device)


@lru_cache(maxsize=MOST_KINDS)
def why_not_compiled(
    flashinfer: FlashInfer, compiled: Compiled, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return why there are no kernels for layers, in words, or None if there are.

    A token is planned by each wrapper, which loads what the steps will run: no other question is
    answered right by every version.
    """
    workspace = torch.zeros(TRIAL_BYTES, dtype=torch.uint8, device=device)
    target = Target(flashinfer, dtype, block_size=1, workspace=workspace)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    pages = Pages(starts, torch.zeros(1, dtype=torch.int32, device=device), starts[1:])
    try:
        _plan_token(target, compiled, pages)
    except (RuntimeError, ImportError, OSError, ValueError) as error:
        name = str(dtype).removeprefix("torch.")
        if type(error).__name__ == NOT_COMPILED:
            return f"no precompiled kernels for {name} {compiled}, see flashinfer-jit-cache"
        return f"no kernels for {name} {compiled}: {_first_line(error)}"
    return None


def log_name(site: Site) -> str:
    """Return what computes the layers of a site, and why FlashInfer does not compute some."""
    reasons = Counter(
        why for layer in site.layers if (why := why_not_taken(layer, site)) is not None
    )
    if not reasons:
        return "flashinfer"
    why = ", ".join(reasons)
    if reasons.total() == len(site.layers):
        return f"triton (not flashinfer: {why})"
    return f"flashinfer, triton in {reasons.total()} of {len(site.layers)} layers ({why})"


def _plan_token(target: Target, compiled: Compiled, pages: Pages) -> None:
    query_starts: Tensor = pages.starts
    for num_heads in (1, TENSOR_CORE_GROUP):
        kind = _kind(compiled, num_heads)
        build_singles(target, kind).plan(kind, pages)
        build_chunks(target).plan(kind, pages, query_starts)


def _kind(compiled: Compiled, num_heads: int) -> Kind:
    return Kind(
        group=0,
        num_heads=num_heads,
        num_kv_heads=1,
        head_size=compiled.head_size,
        scale=1.0,
        pattern=AttentionPattern(AttentionType.SLIDING, 1) if compiled.has_window else FULL,
        softcap=1.0 if compiled.has_cap else None,
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
