"""Modules whose weights are divided among ranks, and that put the parts of an output together.

Each holds what is left of the module that it stands for as a child, whose weight may still be
packed or replaced. Code that replaces a module by one that reads the weights of linear layers finds
none here, and leaves it alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quire.models.parallel.ranks import Ranks

WRAPPED = frozenset({"linear", "inner", "embedding"})
"""The names of the children that stand for whole modules."""


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank multiplies its share of the input's elements.

    The products are summed over ranks, and the bias is added once, after that.
    """

    def __init__(self, linear: nn.Linear, bias: nn.Parameter | None, ranks: Ranks) -> None:
        super().__init__()
        self.linear = linear
        self.bias = bias
        self._ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out_features] of this rank's share of the input, [..., in_features / N]."""
        out = self._ranks.sum(self.linear(x))
        return out if self.bias is None else out.add_(self.bias)


class SplittingLinear(nn.Module):
    """A row-parallel linear layer that is given the whole input, of which rank i has
    `sizes[i]` elements."""

    def __init__(self, inner: RowParallelLinear, sizes: Sequence[int], ranks: Ranks) -> None:
        super().__init__()
        self.inner = inner
        self._sizes = list(sizes)
        self._rank = ranks.rank

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out_features] of [..., in_features]."""
        out: Tensor = self.inner(torch.split(x, self._sizes, dim=-1)[self._rank].contiguous())
        return out


class GatheredLinear(nn.Module):
    """A linear layer of which rank i computes `sizes[i]` of the output's elements; the output is
    whole on every rank."""

    def __init__(self, linear: nn.Linear, sizes: Sequence[int], ranks: Ranks) -> None:
        super().__init__()
        self.linear = linear
        self._sizes = tuple(sizes)
        self._ranks = ranks

    @property
    def weight(self) -> Tensor:
        """This rank's rows: some families ask for the dtype of their head."""
        return self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out_features] of [..., in_features]."""
        return self._ranks.gather(self.linear(x), self._sizes)


class VocabParallelEmbedding(nn.Module):
    """An embedding of which rank i has `sizes[i]` rows; those of all tokens are whole on every
    rank. `embedding` may do more with its rows, each by itself."""

    def __init__(self, embedding: nn.Embedding, sizes: Sequence[int], ranks: Ranks) -> None:
        super().__init__()
        self.embedding = embedding
        self._first = sum(sizes[: ranks.rank])
        self._size = sizes[ranks.rank]
        self._ranks = ranks

    @property
    def weight(self) -> Tensor:
        """This rank's rows: some families ask on which device they are."""
        return self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return [..., hidden_size] of token ids [...]."""
        own = ids - self._first
        is_own = (own >= 0) & (own < self._size)
        rows = self.embedding(own.clamp(0, self._size - 1))
        return self._ranks.sum(torch.where(is_own[..., None], rows, 0))


class SummedOutput(nn.Module):
    """A module of which every rank computes a part, and whose output is the sum of them."""

    def __init__(self, inner: nn.Module, ranks: Ranks) -> None:
        super().__init__()
        self.inner = inner
        self._ranks = ranks

    def forward(self, *args: Tensor, **options: Tensor) -> Tensor:
        return self._ranks.sum(self.inner(*args, **options))
