"""The share of a model that one of several ranks has, before any weight is read."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from quire.models.loading import pretrained
from quire.models.parallel.plan import plan_shards
from quire.models.parallel.ranks import WeightlessRanks
from quire.models.parallel.sharding import shard_module
from quire.models.recurrent.hook import recurrent_layers

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class RankShare(NamedTuple):
    """The share of one rank.

    weight_share: of the bytes of all weights; ranks differ by a row of the head at most.
    num_ways: how many ranks split the KV heads.
    state_bytes: of one state of the recurrent layers; 0 without such layers.
    """

    weight_share: float
    num_ways: int
    state_bytes: int


def look_at_share(folder: Path, config: "PretrainedConfig", num_ranks: int) -> RankShare:
    """Return the smallest share of `num_ranks`; `config` was read from `folder`.

    Raises UnsupportedModel for a model that cannot be divided among them.
    """
    module = pretrained.build_without_weights(folder, config)
    num_bytes = _num_bytes(module)
    plan = plan_shards(module, config.get_text_config(), num_ranks)
    shard_module(module, plan, WeightlessRanks(num_ranks, rank=num_ranks - 1))
    return RankShare(
        _num_bytes(module) / num_bytes,
        num_ranks if plan.divides_heads else 1,
        sum(layer.state.num_bytes for layer in recurrent_layers(module)),
    )


def _num_bytes(module: nn.Module) -> int:
    return sum(weight.nbytes for weight in module.parameters())
