"""The names that transformers has for the tensors of a GGUF file."""

from collections.abc import Iterator

from quire.models.loading.gguf.architectures import COMMON_NAMES, EMBEDDING, HEAD, Architecture
from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.header import GgufTensor
from quire.models.loading.gguf.rope import FACTORS, LONG, SHORT

OUTSIDE = {
    EMBEDDING: "model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
"""The weights that belong to no layer."""
NOT_WEIGHTS = (FACTORS, LONG, SHORT)


def named_tensors(fields: Fields, architecture: Architecture) -> Iterator[tuple[GgufTensor, str]]:
    """Yield the weights of a file with their names in transformers. Raises CheckpointError."""
    for tensor in fields.header.tensors:
        if tensor.name in NOT_WEIGHTS:
            continue
        if not tensor.type.is_read:
            raise fields.refusal(
                f"{tensor.name} is {tensor.type.name}, which is not read: take a file of another "
                "type"
            )
        name = _name(tensor.name, architecture)
        is_matrix = len(tensor.shape) == 2
        if name is None or (not is_matrix and not tensor.type.is_plain):
            raise fields.refusal(
                f"it has the tensor {tensor.name} {list(tensor.shape)}, for which "
                f"{architecture.class_name} has no place"
            )
        yield tensor, name


def _name(name: str, architecture: Architecture) -> str | None:
    if name in OUTSIDE:
        return OUTSIDE[name]
    block, _, rest = name.partition(".")
    index, _, rest = rest.partition(".")
    part, _, kind = rest.rpartition(".")
    found = architecture.names.get(part) or COMMON_NAMES.get(part)
    is_known = block == "blk" and index.isdecimal() and kind in ("weight", "bias")
    return f"model.layers.{index}.{found}.{kind}" if is_known and found else None
