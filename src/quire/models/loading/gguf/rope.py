"""The rotary embedding of a GGUF file, as transformers' `rope_parameters` have it.

Files keep some scalings as factors of each frequency, in tensors: those of Llama 3 are put back
into the four numbers that they were made of, or refused.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.reading import shown

FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
LLAMA3_LENGTHS = (8192, 4096, 2048, 16384, 32768)
"""The original contexts to look for: 8,192 in all models of Meta."""
CLOSE = 1e-4
"""Factors are kept in float32, and were computed so: rounding takes them apart by less."""


class Rope(NamedTuple):
    """`rope_parameters`, and the original context length, if known."""

    parameters: Mapping[str, object]
    original_length: int | None


def read_rope(fields: Fields, prefix: str) -> Rope:
    """Read the rotary embedding. Raises CheckpointError for a scaling that is not known."""
    theta = fields.number(f"{prefix}rope.freq_base", 10000.0)
    if theta <= 0:
        raise fields.refusal(f"{prefix}rope.freq_base is {theta}, must be above 0")
    kind = fields.text(f"{prefix}rope.scaling.type", "none")
    original = fields.whole(f"{prefix}rope.scaling.original_context_length", None)
    parameters: dict[str, object] = {"rope_theta": theta} | _partial(fields, prefix)
    long, short = fields.tensor(LONG), fields.tensor(SHORT)
    if long is not None and short is not None:
        scaled = {
            "rope_type": "longrope",
            "long_factor": long.tolist(),
            "short_factor": short.tolist(),
            "original_max_position_embeddings": original,
        }
    elif (factors := fields.tensor(FACTORS)) is not None:
        scaled = _llama3(fields, float(theta), factors)
    elif kind in ("none", ""):
        scaled = {"rope_type": "default"}
    elif kind in ("linear", "yarn"):
        scaled = _stretched(fields, prefix, kind, original)
    else:
        raise fields.refusal(f"{prefix}rope.scaling.type {shown(kind)} is not known")
    return Rope(parameters | scaled, original)


def _partial(fields: Fields, prefix: str) -> dict[str, object]:
    """Return the rotary share of a head, if it is partial."""
    num_turned = fields.whole(f"{prefix}rope.dimension_count", None)
    num_heads = fields.whole(f"{prefix}attention.head_count", None)
    width = fields.whole(f"{prefix}embedding_length", None)
    if not num_turned or not num_heads or not width:
        return {}
    head_dim = fields.whole(f"{prefix}attention.key_length", None) or width // num_heads
    return {} if num_turned == head_dim else {"partial_rotary_factor": num_turned / head_dim}


def _stretched(fields: Fields, prefix: str, kind: str, original: int | None) -> dict[str, object]:
    factor = fields.number(f"{prefix}rope.scaling.factor", None)
    if factor is None:
        raise fields.refusal(f"it has no {prefix}rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    more = {
        "attention_factor": fields.number(f"{prefix}rope.scaling.yarn_attn_factor", None),
        "beta_fast": fields.number(f"{prefix}rope.scaling.yarn_beta_fast", None),
        "beta_slow": fields.number(f"{prefix}rope.scaling.yarn_beta_slow", None),
        "original_max_position_embeddings": original,
    }
    given = {name: value for name, value in more.items() if value is not None}
    return {"rope_type": "yarn", "factor": factor, **given}


def _llama3(fields: Fields, theta: float, factors: NDArray[np.float32]) -> dict[str, object]:
    factor = round(float(factors.max()), 4)
    for original in LLAMA3_LENGTHS:
        found = {
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
        wanted = llama3_factors(theta, 2 * len(factors), factor, original)
        if np.allclose(factors, wanted, rtol=CLOSE, atol=0):
            return {"rope_type": "llama3", **found}
    if np.all(factors == 1):
        return {"rope_type": "default"}
    raise fields.refusal(
        f"{FACTORS} scales its rotary embedding in a way that is not Llama 3's: give the folder or "
        "hub id of the model that it was converted from"
    )


def llama3_factors(theta: float, size: int, factor: float, original: int) -> NDArray[np.float64]:
    """Return what each frequency of Llama 3.1 is divided by: long waves by `factor`, short ones by
    1, and those between by something between (arXiv:2407.21783, and transformers'
    `modeling_rope_utils.py`)."""
    frequencies = theta ** (-np.arange(0, size, 2) / size)
    waves = 2 * math.pi / frequencies
    smooth = (original / waves - 1) / (4 - 1)
    between = 1 / ((1 - smooth) / factor + smooth)
    found: NDArray[np.float64] = np.where(
        waves < original / 4, 1.0, np.where(waves > original, factor, between)
    )
    return found
