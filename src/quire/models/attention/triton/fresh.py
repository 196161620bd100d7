"""Prompts without earlier context, by PyTorch's flash attention: each sees its own keys and values
alone, as they come, so that no block is read.

`TritonAttention` takes it where it is asked to: no GPU has accepted it yet.
"""

from importlib.util import find_spec
from inspect import signature
from itertools import pairwise

import torch
from torch import Tensor

from quire.cache.spec import AttentionType
from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv.kv_codec import Codec

MODULE = "torch.nn.attention.varlen"
TERMS = frozenset({"scale", "window_size", "enable_gqa"})
"""Parameters that the first versions of torch with it did not all have."""
MAX_HEAD_SIZE = 256
HEAD_SIZE_STEP = 8
DTYPES = (torch.float16, torch.bfloat16)


def why_not_fresh() -> str | None:
    """Return why this version of torch cannot, in words, or None if it can."""
    if find_spec(MODULE) is None:
        return f"torch {torch.__version__} has no {MODULE}"
    from torch.nn.attention.varlen import varlen_attn

    missing = TERMS - signature(varlen_attn).parameters.keys()
    names = ", ".join(sorted(missing))
    return f"varlen_attn of torch {torch.__version__} does not take {names}" if missing else None


def is_fresh(batch: Batch) -> bool:
    """Return whether no sequence of a step has earlier context."""
    spans = zip(pairwise(batch.query_starts), batch.context_lens, strict=True)
    return all(end - start == length for (start, end), length in spans)


def takes(layer: LayerFacts, codec: Codec) -> bool:
    """Return whether it computes a layer. In a quantised store a prompt sees its own keys and
    values as they are stored, which these are not."""
    return (
        not codec.is_quantised
        and codec.dtype in DTYPES
        and not layer.features
        and layer.pattern.attention_type is not AttentionType.CHUNKED
        and layer.head_size == layer.v_head_size <= MAX_HEAD_SIZE
        and layer.head_size % HEAD_SIZE_STEP == 0
    )


def attend_fresh(
    layer: LayerFacts, inputs: StepInputs, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Attend in a step that `is_fresh`, in a layer that it `takes`."""
    from torch.nn.attention.varlen import varlen_attn

    starts, longest = inputs.query_starts, inputs.bounds.longest_chunk
    before = -1 if layer.window_size is None else layer.window_size - 1
    out = varlen_attn(
        query,
        key,
        value,
        starts,
        starts,
        longest,
        longest,
        scale=layer.scale,
        window_size=(before, 0),
        enable_gqa=query.shape[1] != layer.num_kv_heads,
    )
    assert isinstance(out, Tensor), "no other output is asked for"
    return out
