"""Plans for families with recurrent layers whose attention and MLPs transformers plans in part or
not at all. Names are the ends of the names of linear layers and embeddings."""

import re
from collections.abc import Iterator, Mapping

from torch import nn

from quire.models.parallel.styles import Style

NUMBER_WITHIN = re.compile(r"\.\d+(?=\.)")
Plan = Mapping[str, Style]


def _columns_then_rows(within: str, columns: tuple[str, ...], rows: str) -> dict[str, Style]:
    plan = {f"{within}.{name}": Style.COLUMNS for name in columns}
    return {**plan, f"{within}.{rows}": Style.ROWS}


QUERIES_KEYS_VALUES = ("q_proj", "k_proj", "v_proj")
GATE_AND_UP = ("gate_proj", "up_proj")
ATTENTION = _columns_then_rows("self_attn", QUERIES_KEYS_VALUES, "o_proj")
MLP = _columns_then_rows("feed_forward", GATE_AND_UP, "down_proj")
LFM2 = {
    **_columns_then_rows("self_attn", QUERIES_KEYS_VALUES, "out_proj"),
    **_columns_then_rows("feed_forward", ("w1", "w3"), "w2"),
}
MAMBA = {"embeddings": Style.EMBEDDING, "lm_head": Style.COLUMNS_GATHERED}
ADAPTERS = {f"self_attn.linear_{name}_adapter_list.*.1": Style.COLUMNS for name in ("q", "k", "v")}
MORE_PLANS: Mapping[str, Plan] = {
    **dict.fromkeys(("bamba", "falcon_h1", "jamba"), {**ATTENTION, **MLP}),
    **dict.fromkeys(("lfm2", "lfm2_moe"), LFM2),
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), MAMBA),
    "granitemoehybrid": {
        **ATTENTION,
        "shared_mlp.input_linear": Style.PACKED_COLUMNS,
        "shared_mlp.output_linear": Style.ROWS,
    },
    "nemotron_h": {
        **_columns_then_rows("mixer", QUERIES_KEYS_VALUES, "o_proj"),
        **_columns_then_rows("mixer", ("up_proj",), "down_proj"),
        **_columns_then_rows("mixer.shared_experts", ("up_proj",), "down_proj"),
    },
    "zamba2": {
        **ATTENTION,
        **ADAPTERS,
        "feed_forward.gate_up_proj": Style.PACKED_COLUMNS,
        "feed_forward.gate_up_proj_adapter_list.*.1": Style.PACKED_COLUMNS,
        "feed_forward.down_proj": Style.ROWS,
    },
}
"""By the type of the language model."""


def more_styles(module: nn.Module, model_type: str) -> Iterator[tuple[str, Style]]:
    """Yield the names of the parts of a model with recurrent layers that are divided beyond the
    plan of transformers, and their styles."""
    plan = MORE_PLANS.get(model_type, {})
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            style = _style_of(NUMBER_WITHIN.sub(".*", name), plan)
            if style is not None:
                yield name, style


def _style_of(name: str, plan: Plan) -> Style | None:
    ends = (style for end, style in plan.items() if f".{name}".endswith(f".{end}"))
    return next(ends, None)
