"""Reads the shape of a model out of its module and one forward of it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import nn

from quire.models.config import KVOptions, ModelFacts
from quire.models.experts.replacement import CLASS_NAME
from quire.models.parallel.linears import GatheredLinear
from quire.models.shape import AttentionShape, ExpertShape, ModelShape

TOP_K_NAMES = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")
"""Names that configurations have for the number of experts that a token meets."""


def top_k_of(config: object) -> int:
    """Return the number of experts per token; 1 if the configuration has none."""
    found = (getattr(config, name, None) for name in TOP_K_NAMES)
    return next((each for each in found if isinstance(each, int) and each > 0), 1)


@dataclass(frozen=True, slots=True)
class ModuleCalls:
    """The modules that a forward has called, by `id`."""

    ids: set[int] = field(default_factory=set)

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Record the calls of the modules within `module`, for the time of the context."""

        def record(part: nn.Module, _: object) -> None:
            self.ids.add(id(part))

        handles = [part.register_forward_pre_hook(record) for part in module.modules()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def used(self, module: nn.Module) -> Iterator[nn.Module]:
        """Yield the modules whose weights the forward has used: those that it has called, and what
        belongs to them, such as a projection that latent attention reads by itself."""
        for part in module.modules():
            if id(part) in self.ids:
                yield part
                yield from (each for each in part.children() if id(each) not in self.ids)


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """The facts of a module that its own weights do not tell.

    num_heads: the query heads of each layer, by its index.
    packed: the bytes of weights that are packed, by the `id` of the parameter.
    top_k: how many experts a token meets.
    """

    num_heads: Mapping[int, int]
    calls: ModuleCalls
    packed: Mapping[int, int]
    top_k: int
    kv_options: KVOptions


def shape_of(module: nn.Module, facts: ModelFacts, seen: ModuleFacts) -> ModelShape:
    """Return the shape of a model."""
    dense, heads, experts = _Weights(seen.packed), _Weights(seen.packed), _Weights(seen.packed)
    kinds: Counter[tuple[int, int]] = Counter()
    head = _head(module)
    if head is not None:
        heads.add(head)
    for part in seen.calls.used(module):
        if CLASS_NAME in type(part).__name__:
            kinds[experts.add_expert(part)] += 1
        elif part is not head and not isinstance(part, nn.Embedding):
            dense.add(part)
    return ModelShape(
        num_layers=facts.num_layers + len(facts.recurrent),
        hidden_size=0 if head is None else head.get_parameter("weight").shape[1],
        vocab_size=facts.vocab_size,
        dtype=facts.dtype,
        dtype_bytes=facts.dtype_bytes,
        num_dense_weights=dense.num_weights,
        num_head_weights=heads.num_weights,
        num_operands=dense.num_operands,
        dense_bytes=dense.num_bytes,
        head_bytes=heads.num_bytes,
        attention=_attention(facts, seen),
        experts=tuple(
            ExpertShape(count, number, min(seen.top_k, number), size)
            for (number, size), count in kinds.items()
        ),
        expert_weight_bytes=experts.num_bytes / max(experts.num_weights, 1),
    )


@dataclass(slots=True)
class _Weights:
    """Counts matrices and their bytes, each once. Vectors are too small to matter."""

    packed: Mapping[int, int]
    num_weights: int = 0
    num_bytes: int = 0
    num_operands: int = 0
    ids: set[int] = field(default_factory=set)

    def add(self, part: nn.Module) -> None:
        """Count the matrices that a module owns itself."""
        for weight in part.parameters(recurse=False):
            if weight.dim() > 1 and id(weight) not in self.ids:
                self.ids.add(id(weight))
                self.num_weights += weight.numel()
                self.num_operands += sum(weight.shape[-2:])
                self.num_bytes += self.packed.get(id(weight), weight.nbytes)

    def add_expert(self, part: nn.Module) -> tuple[int, int]:
        """Count a module of experts, and return how many it has, and the weights of each."""
        num_before = self.num_weights
        self.add(part)
        num_experts = next((len(each) for each in part.parameters() if each.dim() > 2), 1)
        return num_experts, (self.num_weights - num_before) // num_experts


def _head(module: nn.Module) -> nn.Module | None:
    """Return the output layer, if the module has one."""
    found = getattr(module, "get_output_embeddings", lambda: None)()
    if isinstance(found, GatheredLinear):
        return found.linear
    return found if isinstance(found, nn.Module) else None


def _attention(facts: ModelFacts, seen: ModuleFacts) -> tuple[AttentionShape, ...]:
    """Return the layers by how they attend."""
    sizes = seen.kv_options.element_bytes(facts.dtype_bytes)
    kinds: dict[AttentionShape, int] = {}
    for layer in facts.layers:
        kind = AttentionShape(
            num_layers=1,
            num_heads=seen.num_heads[layer.index],
            head_size=layer.head_size,
            v_head_size=layer.v_head_size,
            token_bytes=layer.kv_spec(*sizes).token_kv.token_bytes,
            pattern=layer.pattern,
        )
        kinds[kind] = kinds.get(kind, 0) + 1
    return tuple(replace(kind, num_layers=count) for kind, count in kinds.items())
