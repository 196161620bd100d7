"""Attention over keys at hand: by torch's fused kernels, or written out where these cannot.

All take `query` [S, T, heads, k_width] and keys and values [S, L, kv heads, width], and add `mask`
to the scores, [S or 1, 1, T, L] or [T, L]. The fused ones want keys and values of the same width.
Written out are layers with a soft cap or with sinks: scores in float32, never more than
`max_scores` of them at once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from quire.models.config import LayerFacts

MAX_SCORES = {"cpu": 1 << 22, "cuda": 1 << 26}
"""What a CPU's cache may hold of them, and for a GPU a bound on memory."""


def is_written_out(layer: LayerFacts) -> bool:
    return layer.softcap is not None or layer.has_sinks


def max_scores(device_type: str, num_keys: int) -> int:
    """`num_keys`: those of all sequences and K/V heads. At least one query of each meets them."""
    return max(MAX_SCORES.get(device_type, MAX_SCORES["cuda"]), num_keys)


def same_width(layer: LayerFacts, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as the fused kernels want them: the narrower is padded with zeros.

    The latent value is the key's first elements, so that the whole key will do for it.
    """
    if layer.is_latent:
        return keys, keys
    if layer.k_width == layer.v_width:
        return keys, values
    return _widened(keys, layer.v_width), _widened(values, layer.k_width)


def decode_fused(
    layer: LayerFacts, query: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor | None
) -> Tensor:
    """One query [heads, k_width] for each sequence. Without a mask it sees all keys."""
    if layer.k_width < layer.v_width:
        query = _widened(query, layer.v_width)
    out = scaled_dot_product_attention(
        query.reshape(len(query), layer.num_kv_heads, -1, query.shape[-1]),
        kv[0].transpose(1, 2),
        kv[1].transpose(1, 2),
        attn_mask=mask,
        scale=layer.scale,
    )
    out = out.flatten(1, 2)
    return out[..., : layer.v_width] if layer.k_width > layer.v_width else out


def attend_fused(
    layer: LayerFacts, query: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor | None
) -> Tensor:
    """Without a mask, a query sees the keys up to its own."""
    query = _widened(query, layer.v_width)
    keys, values = kv[0].transpose(1, 2), kv[1].transpose(1, 2)
    if layer.is_latent:
        keys, values = (each.expand(-1, query.shape[2], -1, -1) for each in (keys, values))
    out = scaled_dot_product_attention(
        query.transpose(1, 2),
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=layer.scale,
        enable_gqa=not layer.is_latent,
    )
    out = out.transpose(1, 2)
    return out[..., : layer.v_width] if layer.k_width > layer.v_width else out


def attend_plainly(
    layer: LayerFacts,
    query: Tensor,
    kv: tuple[Tensor, Tensor],
    mask: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """Without a mask, every query sees all keys. A sink takes its share of the softmax and gives
    nothing."""
    keys, values = (each.transpose(1, 2) for each in kv)
    seqs, num_queries, heads, _ = query.shape
    num_kv_heads, num_keys = keys.shape[1:3]
    rows = query.reshape(seqs, num_queries, num_kv_heads, -1, layer.k_width).permute(0, 2, 1, 3, 4)
    keys = keys.to(torch.float32, memory_format=torch.contiguous_format).flatten(0, 1)
    values = values[..., : layer.v_width].flatten(0, 1)
    logits = None if sinks is None else sinks.float().view(num_kv_heads, 1, -1, 1)
    out = query.new_empty(seqs, num_queries, num_kv_heads, heads // num_kv_heads, layer.v_width)
    for at, group in _pieces(rows, num_keys):
        piece = rows[:, :, at, group]
        scores = torch.bmm(piece.flatten(2, 3).flatten(0, 1).float(), keys.transpose(1, 2))
        scores = scores.mul_(layer.scale).view(*piece.shape[:4], num_keys)
        if layer.softcap is not None:
            scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
        if mask is not None:
            scores += mask[..., at, :].unsqueeze(-2)
        weights = _softmax(scores, None if logits is None else logits[..., group, :])
        weights = weights.to(values.dtype).flatten(2, 3).flatten(0, 1)
        seen = torch.bmm(weights, values).view(*piece.shape[:4], -1)
        out[:, at, :, group] = seen.transpose(1, 2)
        del scores, weights  # before the next are made
    return out.flatten(2, 3)


def _pieces(rows: Tensor, num_keys: int) -> Iterator[tuple[slice, slice]]:
    """(queries, heads of each group) that make at most `max_scores` scores."""
    seqs, num_kv_heads, num_queries, group = rows.shape[:4]
    most = max_scores(rows.device.type, seqs * num_kv_heads * num_keys)
    num_pairs = most // (seqs * num_kv_heads * num_keys)
    heads = min(group, num_pairs)
    queries = min(num_queries, num_pairs // heads) if heads == group else 1
    for first in range(0, num_queries, queries):
        for head in range(0, group, heads):
            yield slice(first, first + queries), slice(head, head + heads)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """In place, over the last dimension. A sink far above all scores may overflow: the weights are
    then zero, as they should be."""
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total += (sinks - top).exp_()
    return weights.div_(total)


def _widened(tensor: Tensor, width: int) -> Tensor:
    missing = width - tensor.shape[-1]
    return pad(tensor, (0, missing)) if missing > 0 else tensor
