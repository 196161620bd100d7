"""The weights of a GGUF file by the names that transformers has for them. What llama.cpp's
converter changed is put back, and no block is taken apart before something computes with it."""

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quire.models.loading.gguf.architectures import Architecture, architecture_of
from quire.models.loading.gguf.blocks import PLAIN, take_apart
from quire.models.loading.gguf.experts import join_experts
from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.ggml_types import GgmlType
from quire.models.loading.gguf.header import GgufTensor
from quire.models.loading.gguf.names import named_tensors
from quire.models.loading.gguf.parts import part_files, read_model
from quire.models.loading.gguf.reading import shown
from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.lazy_weight import LazyWeight, StoredWeight

PERMUTED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """A matrix [N, K] that is stored in blocks of ggml: each row of `content` is whole blocks."""

    content: Tensor
    type: GgmlType
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        num_rows, num_bytes = self.content.shape
        return torch.Size((num_rows, num_bytes // self.type.block_bytes * self.type.block_size))

    def values(self) -> Tensor:
        return self.grouped().values().to(self.dtype)

    def grouped(self) -> GroupedWeight:
        return take_apart(self.content, self.type)

    def narrow(self, dim: int, start: int, length: int) -> "BlockWeight | None":
        if dim == 1:
            if start % self.type.block_size or length % self.type.block_size:
                return None
            start, length = (
                each // self.type.block_size * self.type.block_bytes for each in (start, length)
            )
        return replace(self, content=self.content.narrow(dim, start, length))

    def at_hand(self) -> "BlockWeight":
        return self


def read_weights(path: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights of a model, by the first of its files: floats in `dtype`, and matrices of
    blocks as `LazyWeight`. Raises CheckpointError for a tensor of a type that is not read, or
    without a place."""
    fields = Fields(read_model(path))
    architecture = architecture_of(fields)
    contents = {
        file: torch.from_numpy(np.memmap(file, np.uint8, mode="c"))
        for file in part_files(fields.header)
    }
    state: dict[str, Tensor] = {}
    for tensor, name in named_tensors(fields, architecture):
        stored = contents[tensor.path][tensor.start : tensor.start + tensor.num_bytes]
        rows = stored.view(prod(tensor.shape[:-1]), -1)
        rows = _in_order(rows, tensor, fields, architecture)
        if tensor.type.is_plain:
            numbers = rows.contiguous().view(PLAIN[tensor.type.name]).view(tensor.shape)
            if architecture.shifted_norms and name.endswith("norm.weight"):
                numbers = numbers.float() - 1
            state[name] = numbers.to(dtype)
            continue
        weight: StoredWeight = BlockWeight(rows, tensor.type, dtype)
        is_matrix = len(tensor.shape) == 2
        state[name] = LazyWeight(weight) if is_matrix else weight.values().view(tensor.shape)
    if architecture.join is not None:
        try:
            join_experts(state, architecture.join)
        except (KeyError, RuntimeError) as error:
            raise fields.refusal(f"its experts do not fit together: {shown(str(error))}") from error
    return state


def _in_order(
    rows: Tensor, tensor: GgufTensor, fields: Fields, architecture: Architecture
) -> Tensor:
    """Return rows of queries and keys as transformers turns them: the halves of a head apart, where
    ggml has its pairs side by side."""
    part = tensor.name.split(".")[-2]
    if not architecture.is_permuted or part not in PERMUTED:
        return rows
    prefix = fields.text("general.architecture", "")
    of_queries = fields.whole(f"{prefix}.{PERMUTED['attn_q']}", 1)
    num_heads = max(fields.whole(f"{prefix}.{PERMUTED[part]}", of_queries), 1)
    if len(tensor.shape) == 1:
        rows = rows.view(tensor.shape[0], -1)
    if len(rows) % (2 * num_heads):
        raise fields.refusal(
            f"{shown(tensor.name)} has {len(rows):,} rows, which are not {num_heads} heads of pairs"
        )
    order = torch.arange(len(rows)).view(num_heads, -1, 2).transpose(1, 2).flatten()
    return rows[order]
