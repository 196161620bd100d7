"""Reads from a model how its weights are divided among ranks: transformers' plan, as data.

A plan names modules and parameters, with `*` for the number of a layer, and a style for each. What
it does not name stays whole on every rank.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from quire.models.attention.latent import is_latent
from quire.models.config import NotDivisible, UnsupportedModel
from quire.models.parallel.more_plans import more_styles
from quire.models.parallel.styles import Style
from quire.models.recurrent.division import Division, Units
from quire.models.recurrent.hook import recurrent_divisions

LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")
OUTER = ("lm_head", "embed_tokens")
"""Modules that transformers plans in every family, also where it has no plan for the layers."""
QUERIES = ("q_proj", "qkv_proj", "query_key_value")
"""Linear layers of which each rank computes the queries of its heads, if they are COLUMNS."""
HEAD_COUNTS = {"num_attention_heads": "attention heads", "num_key_value_heads": "KV heads"}
"""Fields of configurations, and what they count. Every family that has a plan names them so."""


WHOLE = frozenset({"local_params", "replicate", "replicated_with_grad_allreduce"})
"""Styles of what stays as it is: replicated, or the owner of parameters that are divided."""
ALIASES = {"colwise_rep": Style.COLUMNS_GATHERED, "rowwise_rep": Style.ROWS_OF_WHOLE}


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The style of each module and parameter of a model that does not stay whole, by name.

    divides_heads: each rank has its share of the heads, and of K and V.
    recurrent: the recurrent modules, which are divided as their families have it.
    """

    model_type: str
    styles: dict[str, Style]
    divides_heads: bool
    recurrent: Mapping[str, Division] = field(default_factory=dict)


def plan_shards(module: nn.Module, config: object, num_ranks: int) -> ShardPlan:
    """Return how `module` is divided among `num_ranks`; it may be on the meta device. `config` is
    that of its language model.

    Raises UnsupportedModel where transformers has no plan or one with a style that is not known
    here, and NotDivisible where heads or weights do not divide.
    """
    model_type = str(getattr(config, "model_type", "unnamed"))
    recurrent = recurrent_divisions(module)
    planned = {
        name: style
        for name, style in _planned(module)
        if not any(name.startswith(f"{part}.") for part in recurrent)
    }
    if not recurrent and not any(name.rsplit(".", 1)[-1] not in OUTER for name in planned):
        raise UnsupportedModel(model_type, "transformers has no plan to divide them among ranks")
    styles = {
        name: _style(model_type, name, style)
        for name, style in planned.items()
        if style not in WHOLE
    }
    if recurrent:
        styles = {**styles, **dict(more_styles(module, model_type))}
    _refuse_latent(model_type, module, styles, has_states=bool(recurrent))
    plan = ShardPlan(model_type, styles, _divides_heads(styles), recurrent)
    if plan.divides_heads:
        _check_heads(model_type, config, num_ranks)
    for division in recurrent.values():
        for units in division.units:
            _check_units(model_type, units, num_ranks)
    return plan


def own_code_refusal(model_type: str) -> UnsupportedModel:
    """Return the refusal of a model whose checkpoint brings code of its own."""
    return UnsupportedModel(model_type, "code of their own is not divided among ranks")


def _refuse_latent(
    model_type: str, module: nn.Module, styles: Mapping[str, Style], *, has_states: bool
) -> None:
    """Raise UnsupportedModel for latent attention, unless recurrent layers are beside it and it
    stays whole."""
    latent = [f"{name}." for name, part in module.named_modules() if is_latent(part)]
    is_divided = any(name.startswith(part) for name in styles for part in latent)
    if is_divided or (latent and not has_states):
        raise UnsupportedModel(model_type, "latent attention is not divided among ranks yet")


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


def _check_units(model_type: str, units: Units, num_ranks: int) -> None:
    """Raise NotDivisible unless every rank gets equally many units, or where they may be shared the
    same one as equally many other ranks."""
    if not (units.are_shared and num_ranks % units.count == 0):
        check_divides(model_type, units.count, units.words, num_ranks)


def check_divides(model_type: str, count: int, words: str, num_ranks: int) -> None:
    """Raise NotDivisible unless `count` is a multiple of `num_ranks`; `words` say of what."""
    if count % num_ranks:
        possible = [str(ranks) for ranks in range(2, count + 1) if not count % ranks]
        others = f", but among {', '.join(possible[:8])}" if possible else ""
        raise NotDivisible(
            model_type, num_ranks, f"{count} {words} do not divide among {num_ranks} ranks{others}"
        )
