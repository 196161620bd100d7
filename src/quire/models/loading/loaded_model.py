"""A loaded module with its facts, which hands out models over it."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from quire.models.attention.absent import NoAttention
from quire.models.attention.backend import AttentionBackend, AttentionSetup
from quire.models.attention.choice import attention_name, build_attention, choose_attention
from quire.models.attention.hook import AttentionContext
from quire.models.attention.scratch import StepLimits
from quire.models.config import KVOptions, KVSize, ModelFacts
from quire.models.hf import HFModel
from quire.models.kv.block_copier import build_block_copier
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import build_kv_store
from quire.models.recurrent.choice import choose_recurrent_kernels
from quire.models.recurrent.state_copier import build_state_copier
from quire.models.recurrent.state_store import build_state_store

DEFAULT_KV = KVOptions()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded module with its facts; each `attach` gives a model over it with its own K and V."""

    module: nn.Module
    context: AttentionContext
    facts: ModelFacts
    kv_dtype: torch.dtype
    device: torch.device
    experts: str = "none"
    """The name of the kernels of experts, for logs."""
    has_head: bool = True
    """Whether the checkpoint has the head that makes logits; else these mean nothing."""

    left_out: tuple[str, ...] = ()
    """The faster ways of computing it that are left out, each in a sentence that says why and what
    that costs."""

    @property
    def weight_bytes(self) -> int:
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return sum(tensor.nbytes for tensor in tensors)

    def attach(
        self,
        num_blocks: int,
        block_size: int,
        options: KVOptions = DEFAULT_KV,
        *,
        num_host_blocks: int = 0,
        num_states: int = 0,
        num_host_states: int = 0,
    ) -> HFModel:
        """Allocate K and V and states, and return a model that works on them.

        `num_blocks` are the device's, the null block among them; `num_host_blocks` are the host's,
        for requests that are swapped out. `num_states` are those of recurrent layers, the null
        state among them, and `num_host_states` the host's. Raises ValueError for fewer than 2
        states where there are such layers.
        """
        store = build_kv_store(
            self.facts.layout(options),
            KVSize(num_blocks, block_size, num_host_blocks),
            codec=choose_codec(options.dtype, self.kv_dtype),
            device=self.device,
            huge_pages=options.huge_pages,
        )
        backend: AttentionBackend = NoAttention()
        if self.facts.layers:
            backend = build_attention(
                store, options.attention, options.disabled, self.site(options).features
            )
        copier = build_block_copier(store, self.device)
        model = HFModel(self.module, self.context, copier, backend, self.facts.vocab_size, store)
        if not self.facts.recurrent:
            return model
        states = build_state_store(
            self.facts.recurrent,
            num_states,
            device=self.device,
            huge_pages=options.huge_pages,
            num_host_states=num_host_states,
        )
        kernels = choose_recurrent_kernels(
            self.device, self.kv_dtype, [layer.state for layer in self.facts.recurrent], options
        )
        state_copier = build_state_copier(states, self.device)
        return replace(model, states=states, kernels=kernels, state_copier=state_copier)

    def attention_name(self, options: KVOptions) -> str:
        """Return the name of the backend that `attach` would choose, to be logged."""
        if not self.facts.layers:
            return NoAttention.name
        return attention_name(options.attention, self.site(options))

    def scratch_bytes(self, limits: StepLimits, options: KVOptions) -> int:
        """Return an upper bound of the bytes that attention allocates in a step, beside the
        activations."""
        if not self.facts.layers:
            return 0
        site = self.site(options)
        attention = choose_attention(options.attention, site)
        return attention.scratch_bytes(self.facts.layers, limits, site)

    def site(self, options: KVOptions) -> AttentionSetup:
        """Return the `AttentionSetup` where its attention runs."""
        layers = self.facts.layers
        codec = choose_codec(options.dtype, self.kv_dtype)
        head_size = max((layer.head_size for layer in layers), default=0)
        v_head_size = max((layer.v_head_size for layer in layers), default=0)
        features = frozenset().union(*(layer.features for layer in layers))
        return AttentionSetup(
            self.device, codec, head_size, v_head_size, options.disabled, features
        )
