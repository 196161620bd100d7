"""Tells people how the weights of a checkpoint were quantised before they were published."""

from collections.abc import Iterable
from pathlib import Path

from quire.models.loading.published.place import quantisation_of
from quire.models.loading.safetensors.stored_tensors import QUANTISED, StoredTensor


def describe_published(folder: Path, tensors: Iterable[StoredTensor]) -> str | None:
    """Return by which format the weights of a folder are stored, how many of them, and in how many
    bits; None where they were not quantised. `tensors` are empty where the weights are not there.
    Raises CheckpointError."""
    quantisation = quantisation_of(folder)
    if quantisation is None:
        return None
    weights = list(tensors)
    small = [weight for weight in weights if weight.dtype == QUANTISED]
    if not weights:
        return quantisation.name
    num_bits = 8 * sum(weight.num_bytes for weight in small)
    bits = num_bits / max(1, sum(weight.num_elements for weight in small))
    return f"{quantisation.name}, {len(small)} of {len(weights)} weights, {bits:.1f} bits a number"
