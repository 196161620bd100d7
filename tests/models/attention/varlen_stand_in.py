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

from tests.models.attention.flashinfer_stand_in import HALVES, Plan, attended, require

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
        sizes = query.shape[1], key.shape[1], query.shape[2]
        plan = Plan((), (), (), *sizes, 1, given["scale"], before, 0.0, query.dtype, causal=True)
        parts = [
            attended(plan, *(each[start:end].float() for each in (query, key, value)))
            for start, end in spans
        ]
        return torch.cat(parts).to(query.dtype)


@contextmanager
def varlen_installed() -> Iterator[None]:
    """Let PyTorch have it on a CPU."""
    with patch("torch.nn.attention.varlen.varlen_attn", VarlenAttn()):
        yield
