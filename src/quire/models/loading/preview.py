"""A preview tells of a model before its weights are read: how long its contexts are, the layout of
its K and V, how large its weights are.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from quire.cache.layout import Layout
from quire.models.config import KVOptions
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading import pretrained
from quire.models.loading.config_layout import layout_from_config
from quire.models.loading.dtype_choice import choose_dtype
from quire.models.loading.end_tokens import check_end_tokens
from quire.models.loading.safetensors.stored_tensors import FLOATS, StoredTensor
from quire.models.loading.share import RankShare, look_at_share
from quire.models.loading.support import max_model_len, refuse_unsupported
from quire.models.loading.weight_files import (
    read_headers,
    refuse_scaled,
    stored_float_bytes,
    weight_bytes,
)
from quire.models.parallel.plan import own_code_refusal
from quire.models.recurrent.config_states import states_from_config
from quire.models.target import Target
from quire.models.weights.weight_kernel import StoredWeightKernel, WeightOutline

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class Preview:
    """All facts in the files of a model that are known before its weights are read.

    vocab_size: 0 where the configuration does not state it.
    dtype: what the model will compute in; None for the dtype of the stored weights.
    dtype_bytes: None where nothing tells it.
    weight_bytes: a lower bound of the bytes of the weights; 0 if only a part of the checkpoint is
        loaded.
    are_kept: the weights stay as they are stored.
    num_ways: how many ranks the KV heads are split among.
    state_bytes: of one state of the recurrent layers, as far as the configuration tells; 0 without
        such layers.
    """

    model_type: str
    max_model_len: int
    vocab_size: int
    dtype: torch.dtype | None
    dtype_bytes: int | None
    weight_bytes: int
    are_kept: bool
    config: object
    num_ways: int = 1
    state_bytes: int = 0

    def layout(self, options: KVOptions) -> Layout | None:
        """Return the layout of K and V, or None if the configuration does not tell it."""
        if self.dtype_bytes is None:
            return None
        return layout_from_config(self.config, options, self.dtype_bytes, num_ways=self.num_ways)


def look_ahead(folder: Path, target: Target, *, trust_remote_code: bool) -> Preview:
    """Look at the files of a model. Raises CheckpointError or UnsupportedModel, as loading would.

    Kernels keep weights that are stored in bfloat16 in no more bytes, whatever dtype the model
    computes in. Where there are several ranks, weights, K, V and states are those of one.
    """
    dtype, device, kernels, num_ranks = target
    whole = pretrained.read_config(folder, trust_remote_code=trust_remote_code)
    config = whole.get_text_config()
    refuse_unsupported(config)
    check_end_tokens(folder)
    tensors = read_headers(folder)
    refuse_scaled(folder, tensors)
    if num_ranks > 1 and trust_remote_code:
        raise own_code_refusal(config.model_type)
    part = look_at_share(folder, whole, num_ranks) if num_ranks > 1 else _whole(config)
    chosen = choose_dtype(dtype, pretrained.stored_dtype(config, tensors), device)
    packing = kernels if kernels is not None and kernels.linears else None
    is_lazy = packing is not None and not trust_remote_code and chosen == torch.float32
    loaded = tensors if whole.model_type == config.model_type else ()
    as_16_bit = is_lazy and _are_bfloat16(tensors)
    least, are_kept = _least_bytes(loaded, config, packing, chosen, as_16_bit=as_16_bit)
    compute_bytes = None if chosen is None else chosen.itemsize
    return Preview(
        model_type=config.model_type,
        max_model_len=max_model_len(config),
        vocab_size=int(getattr(config, "vocab_size", None) or 0),
        dtype=chosen,
        dtype_bytes=compute_bytes or stored_float_bytes(tensors),
        weight_bytes=int(least * part.weight_share),
        are_kept=are_kept,
        config=config,
        num_ways=part.num_ways,
        state_bytes=part.state_bytes,
    )


def _whole(config: object) -> RankShare:
    """Return the share of a model's only rank."""
    states = states_from_config(config) or ()
    return RankShare(1.0, 1, sum(layer.state.num_bytes for layer in states))


def _least_bytes(
    tensors: tuple[StoredTensor, ...],
    config: "PretrainedConfig",
    packing: ModelKernels | None,
    dtype: torch.dtype | None,
    *,
    as_16_bit: bool,
) -> tuple[int, bool]:
    """Return the fewest bytes that the weights take, and whether they stay as they are stored."""
    in_groups = _in_groups(tensors, packing, dtype)
    others = tuple(tensor for tensor in tensors if tensor.name not in in_groups)
    dtype_bytes = None if dtype is None or as_16_bit else dtype.itemsize
    stored_bytes, least = (_weight_bytes(others, config, each) for each in (None, dtype_bytes))
    are_kept = least == stored_bytes and not in_groups
    if packing is not None and dtype is not None and not are_kept:
        least = least * packing.least_bits(dtype) // (8 * dtype.itemsize)
    return least + _weight_bytes(tuple(in_groups.values()), config), are_kept


def _in_groups(
    tensors: tuple[StoredTensor, ...], packing: ModelKernels | None, dtype: torch.dtype | None
) -> dict[str, StoredTensor]:
    """Return the tensors that kernels take in the groups of the file, by name, each with the fewest
    bytes that it then has."""
    kernels = () if packing is None else (*packing.heads, *packing.linears)
    grouped = [kernel for kernel in kernels if isinstance(kernel, StoredWeightKernel)]
    found = {}
    for tensor in tensors:
        if tensor.form is None or dtype is None or len(tensor.shape) != 2:
            continue
        outline = WeightOutline(*tensor.shape, dtype, None, tensor.form)
        planned = [kernel.planned_bytes(outline) for kernel in grouped]
        num_bytes = min((each for each in planned if each is not None), default=None)
        if num_bytes is not None:
            found[tensor.name] = replace(tensor, num_bytes=num_bytes, form=None)
    return found


def _are_bfloat16(tensors: tuple[StoredTensor, ...]) -> bool:
    return all(tensor.dtype == "BF16" for tensor in tensors if tensor.dtype in FLOATS)


def _weight_bytes(
    tensors: tuple[StoredTensor, ...], config: "PretrainedConfig", dtype_bytes: int | None = None
) -> int:
    """Return the bytes of the weights that are loaded, by default as they are stored."""
    return weight_bytes(
        tensors,
        dtype_bytes=dtype_bytes,
        num_layers=config.num_hidden_layers,
        is_tied=bool(getattr(config, "tie_word_embeddings", False)),  # of text beside images: none
    )
