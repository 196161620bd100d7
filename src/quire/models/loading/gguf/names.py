"""The names that transformers has for the tensors of a GGUF file."""

import re
from collections.abc import Iterator

from quire.models.loading.gguf.architectures import (
    COMMON_NAMES,
    EMBEDDING,
    HEAD,
    SINKS,
    Architecture,
)
from quire.models.loading.gguf.experts import EXPERTS
from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.header import GgufTensor
from quire.models.loading.gguf.reading import shown
from quire.models.loading.gguf.rope import FACTORS, LONG, SHORT

OUTSIDE = {
    EMBEDDING: "model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
"""The weights that belong to no layer."""
IN_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(\w+)\.(weight|bias)", re.ASCII)
NOT_WEIGHTS = (FACTORS, LONG, SHORT)


def named_tensors(fields: Fields, architecture: Architecture) -> Iterator[tuple[GgufTensor, str]]:
    """Yield the weights of a file with their names in transformers. Raises CheckpointError."""
    num_layers = fields.whole(f"{fields.text('general.architecture', '')}.block_count", 0)
    for tensor in fields.header.tensors:
        if tensor.name in NOT_WEIGHTS:
            continue
        if not tensor.type.is_read:
            raise fields.refusal(
                f"{shown(tensor.name)} is {tensor.type.name}, which is not read: take a file of "
                "another type"
            )
        name = _name(tensor.name, architecture, num_layers)
        num_dims = 3 if f".{EXPERTS}." in (name or "") else 2
        if name is None or (len(tensor.shape) != num_dims and not tensor.type.is_plain):
            raise fields.refusal(
                f"it has the tensor {shown(tensor.name)} {list(tensor.shape)}, for which "
                f"{architecture.class_name} has no place"
            )
        yield tensor, name


def _name(name: str, architecture: Architecture, num_layers: int) -> str | None:
    if name in OUTSIDE:
        return OUTSIDE[name]
    parts = IN_LAYER.fullmatch(name)
    if parts is None:
        return None
    index, part, kind = parts.groups()
    found = architecture.names.get(part) or COMMON_NAMES.get(part)
    if found is None or int(index) >= num_layers:
        return None
    return f"model.layers.{index}.{found}" + ("" if found == SINKS else f".{kind}")
