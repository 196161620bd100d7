"""Reads from a model how its weights are divided among ranks: transformers' plan, as data.

A plan names modules and parameters, with `*` for the number of a layer, and a style for each. What
it does not name stays whole on every rank.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from quire.models.attention.latent import is_latent
from quire.models.config import NotDivisible, UnsupportedModel
from quire.models.hf import attention_modules
from quire.models.recurrent.hook import recurrent_layers

LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")
OUTER = ("lm_head", "embed_tokens")
"""Modules that transformers plans in every family, also where it has no plan for the layers."""
QUERIES = ("q_proj", "qkv_proj", "query_key_value")
"""Linear layers of which each rank computes the queries of its heads, if they are COLUMNS."""
HEAD_COUNTS = {"num_attention_heads": "attention heads", "num_key_value_heads": "KV heads"}
"""Fields of configurations, and what they count. Every family that has a plan names them so."""


class Style(StrEnum):
    """The ways in which a module or a parameter is divided. Values are transformers' names.

    COLUMNS: a linear layer computes its share of the output's elements.
    COLUMNS_GATHERED: the same, and the output is put together again.
    ROWS: a linear layer is given its share of the input's elements, and outputs are summed.
    ROWS_OF_WHOLE: the same, where the input is whole.
    PACKED_COLUMNS, PACKED_ROWS: a parameter with gate and up of experts, each of which is divided.
    EMBEDDING: an embedding keeps its share of the rows, and looked up rows are put together.
    EXPERTS: the output of experts whose parameters are divided is summed.
    """

    COLUMNS = "colwise"
    COLUMNS_GATHERED = "colwise_gather_output"
    ROWS = "rowwise"
    ROWS_OF_WHOLE = "rowwise_split_input"
    PACKED_COLUMNS = "packed_colwise"
    PACKED_ROWS = "packed_rowwise"
    EMBEDDING = "embedding_rowwise"
    EXPERTS = "moe_tp_experts"


WHOLE = frozenset({"local_params", "replicate", "replicated_with_grad_allreduce"})
"""Styles of what stays as it is: replicated, or the owner of parameters that are divided."""
ALIASES = {"colwise_rep": Style.COLUMNS_GATHERED, "rowwise_rep": Style.ROWS_OF_WHOLE}


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The style of each module and parameter of a model that does not stay whole, by name.

    divides_heads: each rank has its share of the heads, and of K and V.
    """

    model_type: str
    styles: dict[str, Style]
    divides_heads: bool


def plan_shards(module: nn.Module, config: object, num_ranks: int) -> ShardPlan:
    """Return how `module` is divided among `num_ranks`; it may be on the meta device. `config` is
    that of its language model.

    Raises UnsupportedModel where transformers has no plan or one with a style that is not known
    here, and NotDivisible where heads or weights do not divide.
    """
    model_type = str(getattr(config, "model_type", "unnamed"))
    if recurrent_layers(module):
        why = "recurrent layers and their states are not divided among ranks yet"
        raise NotDivisible(model_type, num_ranks, why)
    planned = dict(_planned(module))
    if not any(name.rsplit(".", 1)[-1] not in OUTER for name in planned):
        raise UnsupportedModel(model_type, "transformers has no plan to divide them among ranks")
    if any(is_latent(attention) for _, attention in attention_modules(module)):
        raise UnsupportedModel(model_type, "latent attention is not divided among ranks yet")
    styles = {
        name: _style(model_type, name, style)
        for name, style in planned.items()
        if style not in WHOLE
    }
    plan = ShardPlan(model_type, styles, _divides_heads(styles))
    if plan.divides_heads:
        _check_heads(model_type, config, num_ranks)
    return plan


def own_code_refusal(model_type: str) -> UnsupportedModel:
    """Return the refusal of a model whose checkpoint brings code of its own."""
    return UnsupportedModel(model_type, "code of their own is not divided among ranks")


def _planned(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of modules and parameters that transformers plans, and their styles."""
    plan = getattr(module, "_tp_plan", None) or {}
    names = [name for name, _ in (*module.named_modules(), *module.named_parameters())]
    for name in names:
        style = plan.get(LAYER_NUMBER.sub(".*", name))
        if style is not None:
            yield name, style


def _style(model_type: str, name: str, style: str) -> Style:
    if style in ALIASES:
        return ALIASES[style]
    if style not in set(Style):
        raise UnsupportedModel(
            model_type, f"transformers divides {name} among ranks as {style!r}, not supported yet"
        )
    return Style(style)


def _divides_heads(styles: dict[str, Style]) -> bool:
    return any(
        style is Style.COLUMNS and name.rsplit(".", 1)[-1] in QUERIES
        for name, style in styles.items()
    )


def _check_heads(model_type: str, config: object, num_ranks: int) -> None:
    """Raise NotDivisible unless every rank gets equally many heads of each kind, at least one."""
    for name, words in HEAD_COUNTS.items():
        count = getattr(config, name, None)
        if isinstance(count, int):
            check_divides(model_type, count, words, num_ranks)


def check_divides(model_type: str, count: int, words: str, num_ranks: int) -> None:
    """Raise NotDivisible unless `count` is a multiple of `num_ranks`; `words` say of what."""
    if count % num_ranks:
        possible = [str(ranks) for ranks in range(2, count + 1) if not count % ranks]
        others = f", but among {', '.join(possible[:8])}" if possible else ""
        raise NotDivisible(
            model_type, num_ranks, f"{count} {words} do not divide among {num_ranks} ranks{others}"
        )
