"""Attention over given keys and values: by torch's fused kernels, or written out where they cannot.

All functions take `query` [S, T, heads, head_size] and keys and values [S, L, kv heads, size], and
add `mask` to the scores, [S or 1, 1, T, L] or [T, L]. The fused ones need keys and values of the
same head size. Layers with a soft cap or with sinks are written out: their scores are float32, and
never more than `max_scores` of them exist at once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from quire.models.config import LayerFacts

MAX_SCORES = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Scores at once: what a CPU's cache may hold, and for a GPU a bound on memory."""


def is_written_out(layer: LayerFacts) -> bool:
    """Return whether torch's fused kernels cannot compute the layer."""
    return layer.softcap is not None or layer.has_sinks


def max_scores(device_type: str, num_keys: int) -> int:
    """Return how many scores may exist at once: enough for one query of each sequence and head.

    `num_keys` are the keys of all sequences and K/V heads.
    """
    return max(MAX_SCORES.get(device_type, MAX_SCORES["cuda"]), num_keys)


def same_size(layer: LayerFacts, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of one head size, as the fused kernels need; zeros pad the smaller.

    A latent value is the key's first elements, so that the whole key stands for it.
    """
    if layer.is_latent:
        return keys, keys
    if layer.head_size == layer.v_head_size:
        return keys, values
    return _padded(keys, layer.v_head_size), _padded(values, layer.head_size)


def decode_fused(
    layer: LayerFacts, query: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor | None
) -> Tensor:
    """Attend with one query [heads, head_size] a sequence; without a mask it sees all keys."""
    if layer.head_size < layer.v_head_size:
        query = _padded(query, layer.v_head_size)
    out = scaled_dot_product_attention(
        query.reshape(len(query), layer.num_kv_heads, -1, query.shape[-1]),
        kv[0].transpose(1, 2),
        kv[1].transpose(1, 2),
        attn_mask=mask,
        scale=layer.scale,
    )
    out = out.flatten(1, 2)
    return out[..., : layer.v_head_size] if layer.head_size > layer.v_head_size else out


def attend_fused(
    layer: LayerFacts, query: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor | None
) -> Tensor:
    """Attend with several queries; without a mask, each sees the keys up to its own."""
    query = _padded(query, layer.v_head_size)
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
    return out[..., : layer.v_head_size] if layer.head_size > layer.v_head_size else out


def attend_plainly(
    layer: LayerFacts,
    query: Tensor,
    kv: tuple[Tensor, Tensor],
    mask: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attend with float32 scores that are written out; without a mask, a query sees all keys.

    A sink takes its share of the softmax and adds no value (Xiao et al., arXiv 2309.17453).
    """
    keys, values = (each.transpose(1, 2) for each in kv)
    seqs, num_queries, heads, _ = query.shape
    num_kv_heads, num_keys = keys.shape[1:3]
    rows = query.reshape(seqs, num_queries, num_kv_heads, -1, layer.head_size).permute(
        0, 2, 1, 3, 4
    )
    keys = keys.to(torch.float32, memory_format=torch.contiguous_format).flatten(0, 1)
    values = values[..., : layer.v_head_size].flatten(0, 1)
    logits = None if sinks is None else sinks.float().view(num_kv_heads, 1, -1, 1)
    out = query.new_empty(seqs, num_queries, num_kv_heads, heads // num_kv_heads, layer.v_head_size)
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
    """Yield (queries, heads of each group) that make at most `max_scores` scores."""
    seqs, num_kv_heads, num_queries, group = rows.shape[:4]
    most = max_scores(rows.device.type, seqs * num_kv_heads * num_keys)
    num_pairs = most // (seqs * num_kv_heads * num_keys)
    heads = min(group, num_pairs)
    queries = min(num_queries, num_pairs // heads) if heads == group else 1
    for first in range(0, num_queries, queries):
        for head in range(0, group, heads):
            yield slice(first, first + queries), slice(head, head + heads)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax over the last dimension, computed in place.

    A sink far above all scores may overflow: the weights are then zero, as they should be.
    """
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total += (sinks - top).exp_()
    return weights.div_(total)


def _padded(tensor: Tensor, size: int) -> Tensor:
    missing = size - tensor.shape[-1]
    return pad(tensor, (0, missing)) if missing > 0 else tensor
