"""Joins the experts of a layer as transformers has them: a file keeps gate, up and down projections
of all experts in three tensors, transformers gate and up in one."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

EXPERTS = "mlp.experts"
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "ffn_gate_exps": f"{EXPERTS}.gate",
        "ffn_up_exps": f"{EXPERTS}.up",
        "ffn_down_exps": f"{EXPERTS}.down",
    }
)
"""Parts of a layer, as a file names them and as they are called here until they are joined."""

Join = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Makes the parameters of a layer's experts, by the end of their names, of `gate.weight`,
`up.weight` and `down.weight`, each [experts, rows, columns]; of biases too where a file has
them."""


def stacked(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the rows of gate and up, the gate's first."""
    gate, up = parts["gate.weight"], parts["up.weight"]
    return {"gate_up_proj": torch.cat([gate, up], 1), "down_proj": parts["down.weight"]}


def interleaved(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join gate and up by turns, as columns, with their biases."""
    rows = torch.stack([parts["gate.weight"], parts["up.weight"]], 2).flatten(1, 2)
    biases = torch.stack([parts["gate.bias"], parts["up.bias"]], 2).flatten(1, 2)
    return {
        "gate_up_proj": rows.transpose(1, 2).contiguous(),
        "gate_up_proj_bias": biases,
        "down_proj": parts["down.weight"].transpose(1, 2).contiguous(),
        "down_proj_bias": parts["down.bias"],
    }


def join_experts(state: dict[str, Tensor], join: Join) -> None:
    """Replace the parts of each layer's experts by transformers' tensors for them. Raises KeyError
    for a missing part, RuntimeError for shapes that do not fit."""
    middle = f".{EXPERTS}."
    layers = dict.fromkeys(name.partition(middle)[0] for name in state if middle in name)
    for layer in layers:
        prefix = f"{layer}{middle}"
        names = [name for name in state if name.startswith(prefix)]
        parts = {name.removeprefix(prefix): state.pop(name) for name in names}
        state.update({f"{prefix}{name}": value for name, value in join(parts).items()})
