"""The interface of attention backends, which one test suite checks.

`begin` looks at a step's batch once; each layer then attends within that step. The K and V of all
of the step's tokens are in their slots before any of them is read. Writing first is right because a
block is never reused while a query of this step can still see what it holds: not even a chunk that
spans many windows overwrites what its own first queries need.

Block table entries for what no query of the step can see mean nothing, and are never followed. In a
quantised store the step's own tokens too are seen as they are stored: the result for a prompt must
not depend on how it was cut into chunks.

A new backend is a file with an `AttentionBackend` and a `RegisteredBackend` of it, and a line in
`AttentionBackendName` that says where that one lies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.models.attention.scratch import StepLimits
from quire.models.batch import Batch
from quire.models.config import LayerFacts, LayerFeature
from quire.models.kv.kv_codec import Codec
from quire.models.kv.kv_store import KVStore
from quire.models.optimizations import Disabled


class AttentionSetup(NamedTuple):
    """The place where attention is to run: a device, a codec, the largest head sizes, the
    optimisations that are switched off, and the features that the layers need."""

    device: torch.device
    codec: Codec
    head_size: int
    v_head_size: int
    disabled: Disabled = ()
    features: frozenset[LayerFeature] = frozenset()


class AttentionStep(Protocol):
    """Attention within one step of the engine."""

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store the keys and values of the step's T tokens, and attend with their queries.

        `query` is [T, heads, head_size], `key` [T, kv heads, head_size] and `value`
        [T, kv heads, v_head_size], all of the model's dtype. `layer` tells what a token sees and
        how its scores are made; `sinks`, [heads], are given exactly if `layer.has_sinks`. Of a
        latent layer the value is the first `v_head_size` elements of the key, and `value` is not
        read. Returns [T, heads, v_head_size]. Raises ValueError where the sinks do not fit.
        """
        ...


def check_sinks(layer: LayerFacts, sinks: Tensor | None) -> None:
    """Raise ValueError unless sinks are given exactly if the layer has them."""
    if layer.has_sinks != (sinks is not None):
        raise ValueError(
            f"layer {layer.index} has sinks: {layer.has_sinks}, given: {sinks is not None}"
        )


def dense_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with its last dimension dense, as kernels read it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class AttentionBackend(Protocol):
    """Attention over one KV store."""

    def begin(self, batch: Batch) -> AttentionStep:
        """Prepare for the layers of one step; valid until the next one begins."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteredBackend:
    """One attention backend, as its line in `AttentionBackendName` names it.

    features: those of layers that it computes.
    why_not: returns why it cannot run on a site's device and numbers, in words, or None if it can.
    build: returns the backend over a store, at a site where it can run.
    scratch_bytes: returns an upper bound of the bytes that a step allocates there, beside the
        activations.
    log_name: returns its name for logs.
    is_automatic: whether `auto` tries it on a device of that type.
    is_missed: where `auto` tries it in vain, logs say why.
    """

    features: frozenset[LayerFeature]
    why_not: Callable[[AttentionSetup], str | None]
    build: Callable[[KVStore, AttentionSetup], AttentionBackend]
    scratch_bytes: Callable[[Sequence[LayerFacts], StepLimits, AttentionSetup], int]
    log_name: Callable[[AttentionSetup], str]
    is_automatic: Callable[[str], bool]
    is_missed: bool = False

    def missing(self, site: AttentionSetup) -> tuple[LayerFeature, ...]:
        """Return the features that layers at the site need, and it does not compute."""
        return tuple(each for each in LayerFeature if each in site.features - self.features)

    def refusal(self, site: AttentionSetup) -> str | None:
        """Return why it cannot run at a site, in words, or None if it can."""
        missing = self.missing(site)
        return f"it does not compute {', '.join(missing)}" if missing else self.why_not(site)
