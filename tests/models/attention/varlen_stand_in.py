"""A stand-in for PyTorch's `varlen_attn`, which GPUs alone have: it takes the same parameters,
raises where a kernel would read what it must not, and computes in float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from itertools import pairwise
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import varlen

HALVES = (torch.float16, torch.bfloat16)
SIGNATURE = signature(varlen.varlen_attn)


class VarlenAttn:
    """The function, called by the signature of the real one."""

    __signature__ = SIGNATURE

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        given = SIGNATURE.bind(*args, **kwargs).arguments
        tensors = [given[name] for name in ("query", "key", "value", "cu_seq_q", "cu_seq_k")]
        query, key, value, starts, key_starts = (each for each in tensors)
        require(starts.dtype is key_starts.dtype is torch.int32, "starts are int32")
        spans = list(pairwise(starts.tolist()))
        require(key_starts.tolist() == starts.tolist(), "as many keys as queries")
        longest = max(end - start for start, end in spans)
        require(given["max_q"] == given["max_k"] == longest, "the longest")
        before, after = given["window_size"]
        require(after == 0 and before >= -1, "causal")
        require(given["enable_gqa"] == (query.shape[1] != key.shape[1]), "heads of a K/V head")
        for each in (query, key, value):
            require(len(each) == spans[-1][1] and each.dtype in HALVES, "rows of halves")
            require(each.stride(-1) == 1 and each.shape[-1] <= 256, "dense vectors")
        parts = []
        for start, end in spans:
            rows = (each[start:end].float() for each in (query, key, value))
            parts.append(_attended(*rows, before=before, scale=given["scale"]))
        return torch.cat(parts).to(query.dtype)


def _attended(*tensors: Tensor, before: int, scale: float) -> Tensor:
    """Return softmax(scores) of a sequence's query, key and value, [tokens, heads, width]; `before`
    is how many keys a token sees beside its own, -1 all before it."""
    query, key, value = tensors
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    at = torch.arange(len(query))
    hidden = at > at[:, None]
    if before >= 0:
        hidden |= at < at[:, None] - before
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill_(hidden, -torch.inf).softmax(-1), value)


def require(is_right: bool, what: str) -> None:
    """Raise ValueError, as PyTorch does or should, unless `is_right`."""
    if not is_right:
        raise ValueError(f"varlen_attn: {what}")


@contextmanager
def varlen_installed() -> Iterator[None]:
    """Let PyTorch have it on a CPU."""
    with patch("torch.nn.attention.varlen.varlen_attn", VarlenAttn()):
        yield
