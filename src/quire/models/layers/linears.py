"""Packs the linear weights of a loaded model for its kernels: each `nn.Linear` whose weight a
kernel takes keeps it packed, and only so. An embedding that shares the head's weight looks its rows
up in the packed one.

The parameter that holds a packed weight keeps its name and dtype but not its shape, so that code
that uses it as a matrix fails instead of computing nonsense.
"""

import copy
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from quire.models.attention.latent import is_latent
from quire.models.layers.weight_uses import WeightUses
from quire.models.native.packed_weight import PackedWeight
from quire.models.weights.group_form import GroupForm
from quire.models.weights.lazy_weight import LazyWeight, form_of, widen_all, widened
from quire.models.weights.weight_kernel import (
    InputKernel,
    StoredWeightKernel,
    WeightKernel,
    WeightOutline,
)

logger = logging.getLogger(__name__)

MIB = 2**20


@dataclass(frozen=True, slots=True)
class PackedForward:
    """Stands in for the forward of an `nn.Linear`."""

    kernel: WeightKernel
    weight: PackedWeight
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernel.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLookup:
    """Stands in for the forward of an `nn.Embedding`, or of one that does more with its rows.

    twin: a copy of the module without a weight; it is given the rows that were looked up.
    """

    kernel: WeightKernel
    weight: PackedWeight
    twin: nn.Embedding

    def __call__(self, ids: Tensor) -> Tensor:
        rows = self.kernel.rows(ids.flatten(), self.weight)
        self.twin.weight = nn.Parameter(rows, requires_grad=False)
        found: Tensor = self.twin(torch.arange(len(rows), device=rows.device).view(ids.shape))
        return found


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """A packed weight, and the modules that own it."""

    kernel: WeightKernel
    weight: PackedWeight
    owners: tuple[nn.Module, ...]


@dataclass(frozen=True, slots=True)
class PackedLinears:
    """The linear layers and embeddings that `pack_linears` has packed."""

    shared_weights: tuple[SharedWeight, ...]

    def undo(self) -> None:
        """Unpack every weight and restore its modules; as they were, if the kernels are exact."""
        for each in self.shared_weights:
            weight = nn.Parameter(each.kernel.unpack(each.weight), requires_grad=False)
            for owner in each.owners:
                delattr(owner, "forward")
                setattr(owner, "weight", weight)  # noqa: B010


def pack_linears(
    module: nn.Module,
    kernels: Sequence[WeightKernel],
    uses: WeightUses | None = None,
    heads: Sequence[WeightKernel] = (),
) -> PackedLinears:
    """Pack the weights of `module` that only linear layers and embeddings own.

    Each is packed by the first kernel that takes it, as it is stored or as its numbers, and one at
    a time, so that never more than one is there twice. Those of `heads` come first for heads and
    embeddings. Weights that have been used otherwise in `uses` are left alone.
    Afterwards no weight of the module is a `LazyWeight` any more.
    """
    uses = WeightUses() if uses is None else uses
    found = (
        _packed(owners, (*heads, *kernels) if heads and _is_head(module, owners) else kernels, uses)
        for owners in packable(module, _ids_in_groups(module))
        if id(owners[0].get_parameter("weight")) not in uses.others
    )
    shared_weights = tuple(each for each in found if each is not None)
    widen_all(module)
    if not shared_weights:
        return PackedLinears(shared_weights)
    weights = [each.weight for each in shared_weights]
    _release_file(module, shared_weights)
    logger.info(
        "packed %d linear weights from %.1f to %.1f MiB",
        len(weights),
        sum(weight.plain_bytes for weight in weights) / MIB,
        sum(weight.packed.nbytes for weight in weights) / MIB,
    )
    return PackedLinears(shared_weights)


def adopt_packed(
    module: nn.Module, kernels: Sequence[WeightKernel], kept: Mapping[str, tuple[str, PackedWeight]]
) -> PackedLinears:
    """Give linear layers and embeddings the weights that `pack_linears` has packed in another
    process, by the name of the first parameter: the name of the kernel's class, and the weight.

    Afterwards no weight of the module is a `LazyWeight` any more. Raises ValueError where a weight
    or a kernel is not there, or a shape is another.
    """
    by_name = {type(kernel).__name__: kernel for kernel in kernels}
    names = weight_names(module)
    found = {names[id(owners[0])]: owners for owners in packable(module, _ids_in_groups(module))}
    if not (kept.keys() <= found.keys() and {name for name, _ in kept.values()} <= by_name.keys()):
        raise ValueError("it is of other weights or kernels")
    for name, (_, packed) in kept.items():
        shape = found[name][0].get_parameter("weight").shape
        if shape != (packed.num_rows, packed.num_columns):
            raise ValueError(f"{name} is {list(shape)} in the model")
    shared_weights = tuple(
        _own(found[name], by_name[kernel], packed) for name, (kernel, packed) in kept.items()
    )
    widen_all(module)
    _release_file(module, shared_weights)
    return PackedLinears(shared_weights)


def weight_names(module: nn.Module) -> dict[int, str]:
    """Return the names of the parameters `weight` by the `id` of their modules."""
    return {id(part): f"{name}.weight" for name, part in module.named_modules()}


def planned_bytes(
    module: nn.Module,
    kernels: Sequence[WeightKernel],
    stored: torch.dtype | None,
    heads: Sequence[WeightKernel] = (),
    forms: Mapping[int, GroupForm] = MappingProxyType({}),
) -> dict[int, int]:
    """Return the bytes that each weight of a module on the meta device takes once it is packed, by
    the `id` of the parameter. `stored` is the dtype of the checkpoint, and `forms` are those of the
    weights that it stores in groups, by the `id` too."""
    planned: dict[int, int] = {}
    for owners in packable(module, forms):
        weight = owners[0].get_parameter("weight")
        form = forms.get(id(weight))
        own = stored if form is None else None
        outline = WeightOutline(len(weight), weight.shape[1], weight.dtype, own, form)
        tried = (*heads, *kernels) if heads and _is_head(module, owners) else kernels
        found = (kernel.planned_bytes(outline) for kernel in tried if _may_pack(kernel, owners))
        num_bytes = next((each for each in found if each is not None), None)
        if num_bytes is not None:
            planned[id(weight)] = num_bytes
    return planned


def _release_file(module: nn.Module, shared_weights: Collection[SharedWeight]) -> None:
    """Copy the weights that are not packed out of the mapped file, if they are the smaller part.

    As long as one weight lies in the mapped file, all of it counts as this process's memory. Views
    that latent attention keeps stay.
    """
    packed = {id(owner) for each in shared_weights for owner in each.owners}
    kept = _latent_projections(module)
    left = {
        id(parameter): parameter
        for part in module.modules()
        if id(part) not in kept
        for name, parameter in part.named_parameters(recurse=False)
        if not (id(part) in packed and name == "weight")
    }
    num_bytes_left = sum(parameter.nbytes for parameter in left.values())
    if num_bytes_left < sum(each.weight.plain_bytes for each in shared_weights):
        for parameter in left.values():
            parameter.data = parameter.data.clone()


def _latent_projections(module: nn.Module) -> set[int]:
    """Return the ids of the modules whose weights latent attention keeps views of."""
    return {id(part.get_submodule("kv_b_proj")) for part in module.modules() if is_latent(part)}


def packable(module: nn.Module, in_groups: Collection[int]) -> list[list[nn.Module]]:
    """Return the owners of each weight that a kernel may take: a linear layer is one of them, or
    the weight is one of those by their `id` that are stored in groups."""
    kept = _latent_projections(module)
    shared: dict[nn.Parameter, list[nn.Module]] = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            shared.setdefault(parameter, []).append(part)
    return [
        owners
        for weight, owners in shared.items()
        if (id(weight) in in_groups or _has_linear(owners))
        and all(id(owner) not in kept and _can_pack(weight, owner) for owner in owners)
    ]


def _ids_in_groups(module: nn.Module) -> set[int]:
    """Return the ids of the weights that are stored in groups."""
    return {
        id(weight)
        for weight in module.parameters()
        if isinstance(weight, LazyWeight) and form_of(weight.stored) is not None
    }


def _has_linear(owners: Collection[nn.Module]) -> bool:
    return any(type(owner) is nn.Linear for owner in owners)


def _may_pack(kernel: WeightKernel, owners: Collection[nn.Module]) -> bool:
    """Return whether a kernel may pack a weight of these owners: one of embeddings alone stays as
    it is unless it stays in its groups."""
    return _has_linear(owners) or isinstance(kernel, StoredWeightKernel)


def _is_head(module: nn.Module, owners: Collection[nn.Module]) -> bool:
    """Return whether a weight is that of a head or an embedding."""
    head = getattr(module, "lm_head", None)
    return any(owner is head or isinstance(owner, nn.Embedding) for owner in owners)


def _can_pack(weight: nn.Parameter, owner: nn.Module) -> bool:
    if owner._parameters.get("weight") is not weight or "forward" in vars(owner):
        return False
    if weight.numel() == 0:
        return False
    if isinstance(owner, nn.Embedding):
        return owner.max_norm is None
    return type(owner) is nn.Linear and (owner.bias is None or owner.bias.dtype == weight.dtype)


def _packed(
    owners: list[nn.Module], kernels: Sequence[WeightKernel], uses: WeightUses
) -> SharedWeight | None:
    """Pack a weight by the first kernel that takes it, as it is stored or else as its numbers."""
    weight = owners[0].get_parameter("weight")
    numbers = None
    for kernel in kernels:
        if isinstance(weight, LazyWeight) and isinstance(kernel, StoredWeightKernel):
            if kernel.takes_stored(weight.stored):
                return _own(owners, kernel, kernel.pack_stored(weight.stored))
        if not _has_linear(owners):
            continue
        numbers = widened(weight) if numbers is None else numbers
        if not kernel.takes(numbers):
            continue
        sizes = uses.input_sizes(weight)
        if sizes is not None and isinstance(kernel, InputKernel):
            return _own(owners, kernel, kernel.pack_for(numbers, sizes))
        return _own(owners, kernel, kernel.pack(numbers))
    return None


def _own(owners: list[nn.Module], kernel: WeightKernel, packed: PackedWeight) -> SharedWeight:
    """Give the modules a packed weight, and the forward that computes with it."""
    parameter = nn.Parameter(packed.packed, requires_grad=False)
    packed = replace(packed, packed=parameter)
    for owner in owners:
        if isinstance(owner, nn.Embedding):
            forward: PackedForward | PackedLookup = PackedLookup(kernel, packed, _twin(owner))
        else:
            assert isinstance(owner, nn.Linear)
            forward = PackedForward(kernel, packed, owner.bias)
        setattr(owner, "weight", parameter)  # noqa: B010
        setattr(owner, "forward", forward)  # noqa: B010
    return SharedWeight(kernel, packed, tuple(owners))


def _twin(embedding: nn.Embedding) -> nn.Embedding:
    """Return a copy of the embedding without a weight."""
    twin = copy.copy(embedding)
    twin._parameters = {**embedding._parameters, "weight": None}
    twin.padding_idx = None
    return twin
