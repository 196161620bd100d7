"""Maps the name of a stored tensor to a part of a weight, as in most formats: parts of a linear
layer beside its `weight`, and parts of experts in one tensor after its name."""

import re
from collections.abc import Mapping

from quire.models.loading.published.published_format import UNUSED, WeightPart

UNUSED_PARTS = frozenset(
    {
        *("activation_scale", "input_global_scale", "input_scale", "input_scale_ub"),
        *(
            "input_zero_point",
            "kv_scale",
            "output_scale",
            "output_zero_point",
            "qscale_act",
            "weight_shape",
        ),
        *(f"{state}_{part}" for state in "qkv" for part in ("scale", "zero_point")),
        *(f"{state}_global_scale" for state in "qkv"),
    }
)
"""Scales of activations, and of keys and values: these are computed in more bits."""
_OF_EXPERTS = re.compile(r"(.+\.experts\.(?:gate_up|gate|up|down)_proj)(?:_(\w+))?")
_WEIGHT = "weight"


def module_place(name: str, parts: Mapping[str, str]) -> WeightPart | None:
    """Return where a tensor belongs, by the parts of a layer: their names in the file, without the
    layer's, and in the format."""
    module, _, ending = name.rpartition(".")
    found = _OF_EXPERTS.fullmatch(name)
    if found is not None:
        weight, ending = found[1], _ending_of_experts(found[2], parts)
    else:
        weight = f"{module}.{_WEIGHT}"
    if ending in UNUSED_PARTS:
        return UNUSED
    return WeightPart(weight, parts[ending]) if ending in parts else None


def _ending_of_experts(ending: str | None, parts: Mapping[str, str]) -> str:
    """Return the name of a part within a linear layer: a scale of experts may be called so
    alone."""
    if ending is None:
        return _WEIGHT
    return f"{_WEIGHT}_{ending}" if f"{_WEIGHT}_{ending}" in parts else ending
