"""The weights of a checkpoint that was quantised before it was published, by the names that
transformers has for them."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TypeVar

import torch
from torch import Tensor

from quire.models.config import CheckpointError
from quire.models.loading.published.description import describe_published
from quire.models.loading.published.place import FORMATS, quantisation_of
from quire.models.loading.published.published_format import (
    UNUSED,
    PartOutline,
    PublishedFormat,
    PublishedWeight,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.safetensors.opened_tensors import as_loaded, contents_of, opened_tensors
from quire.models.loading.safetensors.stored_tensors import (
    FLOATS,
    QUANTISED,
    StoredTensor,
    stored_tensors,
)
from quire.models.weights.lazy_weight import LazyWeight

logger = logging.getLogger(__name__)

PLAIN = ""
"""The part that a weight is which is stored as it is."""
MAX_TELLING_BYTES = 4096
"""The maximum size of a part that describes the others."""
Part = TypeVar("Part")


def format_of(folder: Path) -> PublishedFormat | None:
    """Return the format of a folder whose weights were quantised, None for any other. Raises
    CheckpointError for one that is not read."""
    quantisation = quantisation_of(folder)
    if quantisation is None:
        return None
    if not quantisation.is_read:
        raise CheckpointError(quantisation.refusal(folder, "which Quire does not read"))
    make = resolve_name(FORMATS[quantisation.method])
    try:
        made: PublishedFormat = make(quantisation.settings)
    except UnsupportedFormat as error:
        raise CheckpointError(quantisation.refusal(folder, str(error))) from error
    return made


def whole_tensors(folder: Path, stored: Iterable[StoredTensor]) -> tuple[StoredTensor, ...]:
    """Return the weights that the tensors of a folder's files make up; without a format these
    tensors themselves. Raises CheckpointError for those that make up none."""
    form = format_of(folder)
    tensors = tuple(stored)
    if form is None:
        return tensors
    contents = contents_of(folder, _telling(folder, form, tensors))
    found = _by_weight(form, ((tensor.name, tensor) for tensor in tensors))
    whole = partial(_whole, folder, form, contents)
    return tuple(whole(name, parts) for name, parts in found.items())


def read_published(folder: Path, form: PublishedFormat, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights of a folder in `dtype`: what was quantised, and matrices of 16 bits for
    float32, as `LazyWeight`. The parts of a weight may lie in several files. Raises
    CheckpointError."""
    tensors = whole_tensors(folder, stored_tensors(folder))
    logger.info("weights are quantised: %s", describe_published(folder, tensors))
    shapes = {whole.name: whole.shape for whole in tensors}
    state: dict[str, Tensor] = {}
    for name, parts in _by_weight(form, opened_tensors(folder)).items():
        if parts.keys() == {PLAIN}:
            state[name] = as_loaded(parts[PLAIN], dtype)
            continue
        shape = torch.Size(shapes[name])
        unpacked = partial(form.unpacked, name)
        state[name] = LazyWeight(PublishedWeight(shape, dtype, parts, unpacked))
    return state


def _by_weight(
    form: PublishedFormat, tensors: Iterable[tuple[str, Part]]
) -> dict[str, dict[str, Part]]:
    """Return tensors by the names of their weights and parts; that of a weight which is stored as
    it is has the part PLAIN."""
    found: dict[str, dict[str, Part]] = {}
    own_names = set()
    for name, tensor in tensors:
        place = form.place(name) or WeightPart(name, PLAIN)
        if place == UNUSED:
            continue
        found.setdefault(place.weight, {})[place.part] = tensor
        if place.weight == name:
            own_names.add(name)
    for name in own_names:
        if len(found[name]) == 1:
            found[name] = {PLAIN: next(iter(found[name].values()))}
    return found


def _telling(
    folder: Path, form: PublishedFormat, tensors: Iterable[StoredTensor]
) -> frozenset[str]:
    """Return the names of the tensors whose bytes tell of others. Raises CheckpointError."""
    names = set()
    for tensor in tensors:
        place = form.place(tensor.name)
        if place is None or not place.is_telling:
            continue
        if tensor.num_bytes > MAX_TELLING_BYTES:
            raise CheckpointError(
                f"{folder} holds {tensor.name} of {tensor.num_bytes} bytes, of which Quire reads "
                f"at most {MAX_TELLING_BYTES}"
            )
        names.add(tensor.name)
    return frozenset(names)


def _whole(
    folder: Path,
    form: PublishedFormat,
    contents: Mapping[str, bytes],
    name: str,
    parts: Mapping[str, StoredTensor],
) -> StoredTensor:
    try:
        if parts.keys() == {PLAIN}:
            return _plain(parts[PLAIN])
        outlines = {
            part: PartOutline(each.dtype, each.shape, contents.get(each.name, b""))
            for part, each in parts.items()
        }
        shape = form.shape(name, outlines)
    except UnsupportedFormat as error:
        raise CheckpointError(f"{folder} holds {name}, which is not read: {error}") from error
    num_bytes = sum(each.num_bytes for each in parts.values())
    return StoredTensor(name, QUANTISED, shape, num_bytes)


def _plain(tensor: StoredTensor) -> StoredTensor:
    is_number = tensor.dtype in FLOATS or not tensor.name.endswith(".weight")
    if not is_number and not tensor.dtype.startswith("F8"):
        raise UnsupportedFormat(
            f"it is of {tensor.dtype}, without the scales that make numbers of it"
        )
    return tensor
