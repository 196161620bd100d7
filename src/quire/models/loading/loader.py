"""Loads a checkpoint and hands out models over it.

    loaded = load_model(ModelSource("folder or hub id"), dtype=ModelDtype.AUTO,
                        device=torch.device("cpu"), on_progress=lambda phase, done, total: None)
    loaded.facts            ModelFacts: layers, vocab_size, max_model_len, eos_token_ids, dtype, ...
    loaded.weight_bytes     what the weights take on `loaded.device`
    loaded.facts.layout(KVOptions())    layer groups, and what a block of them takes
    loaded.attach(num_blocks=1000, block_size=16)   a Model with its own K and V

`load_model` raises CheckpointError (files missing or unusable) or UnsupportedModel (by name, with
the reason). `attach` may be called again: for a profile, attach one block, and run chunks without
earlier context whose slots and tables all lie in it; such a model and its store are freed when
dropped.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire.models.attention.backend import Site
from quire.models.attention.choice import attention_name, build_attention, choose_attention
from quire.models.attention.hook import AttentionContext
from quire.models.attention.scratch import StepLimits
from quire.models.config import (
    KVOptions,
    KVSize,
    LayerFacts,
    ModelDtype,
    ModelFacts,
    UnsupportedModel,
)
from quire.models.experts.replacement import choose_experts, has_experts
from quire.models.hf import HFModel, PagedAttentionHook, attach_hook, attention_modules, prepare
from quire.models.kv.block_copier import build_block_copier
from quire.models.kv.huge_pages import return_free_memory
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import build_kv_store
from quire.models.layers.frozen_rotary import freeze_rotary
from quire.models.layers.greedy_head import greedy_head_scratch_bytes, use_greedy_head
from quire.models.layers.linears import OtherUses, pack_linears
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.module_replacement import replace_modules
from quire.models.layers.relocation import relocate_weights
from quire.models.loading.batch_invariance import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    OWN_TOLERANCE,
    TOLERANCE,
    hidden_size,
    is_batch_invariant,
    is_close,
)
from quire.models.loading.checkpoint import ModelSource, Progress, locate
from quire.models.loading.checkpoint_kind import has_head
from quire.models.loading.dtype_choice import choose_dtype, log_dtype, naming_dtype
from quire.models.loading.end_tokens import within_vocabulary
from quire.models.loading.probe import (
    FORWARD_ERRORS,
    TOKENS,
    Probe,
    first_logits,
    probe,
    probe_without_weights,
    refuse_nan,
)
from quire.models.loading.quantised import TOLERANCE as QUANTISED_TOLERANCE
from quire.models.loading.quantised import check_quantised, log_quantised
from quire.models.loading.support import Layering, layering, max_model_len, refuse_unsupported
from quire.models.loading.weight_files import read_headers
from quire.models.parallel.plan import own_code_refusal, plan_shards
from quire.models.parallel.ranks import Ranks, WeightlessRanks
from quire.models.parallel.sharding import Share, shard_module
from quire.models.states import show_states
from quire.models.target import Target

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

logger = logging.getLogger(__name__)

DEFAULT_KV = KVOptions()
ONE_GROUP = KVOptions(hybrid=False)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded module with its facts; each `attach` gives a model over it with its own K and V."""

    module: nn.Module
    context: AttentionContext
    facts: ModelFacts
    kv_dtype: torch.dtype
    device: torch.device
    experts: str = "none"
    """The name of what computes experts, for logs."""
    has_head: bool = True
    """Whether the checkpoint has the head that makes logits; else these mean nothing."""

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
    ) -> HFModel:
        """Allocate K and V, and return a model that attends over them.

        `num_blocks` are the device's, the null block among them; `num_host_blocks` are the host's,
        for requests that are swapped out.
        """
        store = build_kv_store(
            self.facts.layout(options),
            KVSize(num_blocks, block_size, num_host_blocks),
            codec=choose_codec(options.dtype, self.kv_dtype),
            device=self.device,
            huge_pages=options.huge_pages,
        )
        backend = build_attention(
            store, options.attention, options.disabled, self.site(options).features
        )
        copier = build_block_copier(store, self.device)
        return HFModel(self.module, self.context, copier, backend, self.facts.vocab_size, store)

    def attention_name(self, options: KVOptions) -> str:
        """Return the name of the backend that `attach` would choose, to be logged."""
        return attention_name(options.attention, self.site(options))

    def scratch_bytes(self, limits: StepLimits, options: KVOptions) -> int:
        """Return an upper bound of what attention and the head allocate in a step, in bytes, beside
        the activations."""
        head = greedy_head_scratch_bytes(self.module, limits.num_seqs)
        site = self.site(options)
        attention = choose_attention(options.attention, site)
        return head + attention.scratch_bytes(self.facts.layers, limits, site)

    def site(self, options: KVOptions) -> Site:
        """Return the place where its attention runs."""
        layers = self.facts.layers
        codec = choose_codec(options.dtype, self.kv_dtype)
        head_size = max(layer.head_size for layer in layers)
        v_head_size = max(layer.v_head_size for layer in layers)
        features = frozenset().union(*(layer.features for layer in layers))
        return Site(self.device, codec, head_size, v_head_size, options.disabled, features, layers)


def load_model(
    source: ModelSource,
    *,
    dtype: ModelDtype,
    device: torch.device,
    on_progress: Progress,
    kernels: ModelKernels | None = None,
) -> LoadedModel:
    """Load a model, check that it is served right, and replace what `kernels` compute faster.

    `on_progress` gets the phases download, weights and probe. `kernels` compute linear layers of
    their dtypes, and what is between them; None means that torch does. Raises
    CheckpointError or UnsupportedModel, the latter also where the kernels quantise and no weight
    can be quantised, or the logits then differ too much.
    """
    checkpoint = _open_checkpoint(source, on_progress)
    return _load(checkpoint, Target(dtype, device, kernels), on_progress)


def load_shard(
    source: ModelSource,
    ranks: Ranks,
    *,
    dtype: ModelDtype,
    on_progress: Progress,
    kernels: ModelKernels | None = None,
) -> LoadedModel:
    """Load this rank's share of a model on the device of `ranks`, as `load_model` does.

    All ranks of `ranks` load the same model at the same time, with the same options. The facts of
    layers are those of this rank's heads; logits are whole, and the same to the bit on every rank.
    Raises UnsupportedModel too for a model that cannot be divided, and RankLost.
    """
    checkpoint = _open_checkpoint(source, on_progress)
    target = Target(dtype, ranks.device, kernels, ranks.size)
    if ranks.size == 1:
        return _load(checkpoint, target, on_progress)
    config = checkpoint.config.get_text_config()
    if checkpoint.skeleton is None:
        raise own_code_refusal(config.model_type)
    plan = plan_shards(checkpoint.skeleton, config, ranks.size)
    shard_module(checkpoint.skeleton, plan, WeightlessRanks(ranks.size))
    share = Share(plan, ranks, checkpoint.layers)
    return _load(checkpoint, target, on_progress, share)


def _load(
    checkpoint: "_Checkpoint", target: Target, on_progress: Progress, share: Share | None = None
) -> LoadedModel:
    """Load the model, or a share of it."""
    from quire.models.loading import pretrained

    dtype, device, kernels, _ = target
    config = checkpoint.config.get_text_config()
    stored = pretrained.stored_dtype(config, read_headers(checkpoint.folder))
    chosen = choose_dtype(dtype, stored, device)
    if dtype is ModelDtype.AUTO:
        log_dtype(stored, chosen, device.type)
    is_lazy = kernels is not None and device.type == "cpu" and chosen == torch.float32
    module = _read_weights(checkpoint, chosen, on_progress, is_lazy=is_lazy)
    on_progress("probe", 0, 1)
    if share is not None:
        share.keep(module)
    nn.Module.to(module, device)
    with naming_dtype(stored, chosen):
        loaded, other_uses, logits = _probed(checkpoint.folder, config, module, device)
    if share is not None:
        share.check(loaded.facts.layers)
    heads = checkpoint.skeleton is None or has_head(checkpoint.folder)
    loaded = replace(loaded, experts=_choose_experts(loaded, logits), has_head=heads)
    if kernels is not None:
        return_free_memory()
        _replace_by_kernels(loaded, kernels, other_uses, logits)
        relocate_weights(module, kernels.disabled)
    return_free_memory()
    on_progress("probe", 1, 1)
    return loaded


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint of a family that is served. `skeleton` is its module without weights; None where
    the checkpoint brings code of its own, which need not run on the meta device. `layers` are those
    that the skeleton shows."""

    folder: Path
    config: "PretrainedConfig"
    skeleton: "PreTrainedModel | None"
    layers: Mapping[int, LayerFacts] = field(default_factory=dict)


def _open_checkpoint(source: ModelSource, on_progress: Progress) -> _Checkpoint:
    """Find a checkpoint, and refuse what can be refused before its weights are read."""
    from quire.models.loading import pretrained

    folder = locate(source, on_progress)
    config = pretrained.read_config(folder, trust_remote_code=source.trust_remote_code)
    text_config = config.get_text_config()
    refuse_unsupported(text_config)
    if source.trust_remote_code:
        return _Checkpoint(folder, config, None)
    skeleton = pretrained.build_without_weights(folder, config)
    layers = probe_without_weights(skeleton, text_config.model_type, layering(text_config))
    return _Checkpoint(folder, config, skeleton, layers)


def _read_weights(
    checkpoint: _Checkpoint, dtype: torch.dtype | None, on_progress: Progress, *, is_lazy: bool
) -> "PreTrainedModel":
    """Return the module on the CPU, with its weights in `dtype`. Where `is_lazy`, 16-bit matrices
    stay as they are stored, unless the checkpoint brings code of its own."""
    from quire.models.loading import pretrained

    on_tensor = partial(on_progress, "weights")
    folder, config, skeleton = checkpoint.folder, checkpoint.config, checkpoint.skeleton
    if is_lazy and skeleton is not None:
        return pretrained.load_lazy_upcast(folder, config, skeleton, on_tensor)
    return pretrained.load_module(
        folder,
        config,
        dtype=dtype,
        trust_remote_code=skeleton is None,
        on_tensor=on_tensor,
    )


def _probed(
    folder: Path, config: "PretrainedConfig", module: "PreTrainedModel", device: torch.device
) -> tuple[LoadedModel, Collection[int], Tensor]:
    """Measure the model, and check that its logits do not depend on other requests in the batch.

    Returns the model, the ids of weights that are used by more than linear layers, and the logits
    of the probe.
    """
    from quire.models.loading import pretrained

    with pretrained.own_attention(module):
        own = first_logits(module, config.model_type)
    if own.isnan().any():
        refuse_nan(folder, module)
    freeze_rotary(module, max_model_len(config), device)
    measured = _measure(module, config.model_type, layering(config), own)
    facts = ModelFacts(
        model_type=config.model_type,
        layers=measured.layers,
        vocab_size=len(measured.logits),
        max_model_len=max_model_len(config),
        eos_token_ids=within_vocabulary(
            pretrained.eos_token_ids(folder, module), len(measured.logits)
        ),
        dtype=str(measured.kv_dtype).removeprefix("torch."),
        dtype_bytes=measured.kv_dtype.itemsize,
    )
    loaded = _with_hooks(module, facts, measured.kv_dtype, device)
    facts = replace(facts, hidden_size=hidden_size(_attach_small(loaded), device))
    loaded = replace(loaded, facts=facts)
    with OtherUses() as uses:
        if not _is_batch_invariant(loaded, measured.logits):
            raise UnsupportedModel(
                facts.model_type, "requests packed into one row change each other"
            )
    return loaded, uses.ids, measured.logits


def _replace_by_kernels(
    loaded: LoadedModel, kernels: ModelKernels, used_otherwise: Collection[int], logits: Tensor
) -> None:
    """Pack the linear weights, replace modules by fused ones, and give the head candidate pruning.

    Each change is undone where the model then fails or its logits differ. A model whose weights
    were to be quantised is refused instead: it is not served without that.
    """
    model_type, is_exact = loaded.facts.model_type, kernels.are_exact

    def is_right() -> bool:
        try:
            return _is_batch_invariant(
                loaded, logits, TOLERANCE if is_exact else QUANTISED_TOLERANCE
            )
        except FORWARD_ERRORS as error:
            logger.info("%s models do not run so: %r", model_type, error)
            return False

    packed = pack_linears(loaded.module, kernels.linears, used_otherwise)
    if not is_exact:
        log_quantised(loaded.module, packed, model_type)
        check_quantised(_attach_small(loaded), model_type, TOKENS, logits)
    elif not is_right():
        packed.undo()
        logger.info("the linear weights are unpacked again")
        return
    replacements = replace_modules(loaded.module, kernels, loaded.context, is_right)
    if not is_right():
        replacements.undo()
        logger.info("the fused parts are taken out again")
    use_greedy_head(loaded.module, kernels)


def _choose_experts(loaded: LoadedModel, logits: Tensor) -> str:
    """Choose what computes experts, and return its name for logs."""
    if not has_experts(loaded.module):
        return "none"
    if loaded.device.type != "cuda":
        return "transformers"
    return choose_experts(loaded.module, loaded.device, lambda: _is_batch_invariant(loaded, logits))


def _is_batch_invariant(
    loaded: LoadedModel, logits: Tensor, tolerance: Mapping[torch.dtype, float] = TOLERANCE
) -> bool:
    return is_batch_invariant(_attach_small(loaded), TOKENS, logits, tolerance=tolerance)


def _attach_small(loaded: LoadedModel) -> HFModel:
    return loaded.attach(NUM_BLOCKS, BLOCK_SIZE, ONE_GROUP)


def _measure(module: nn.Module, model_type: str, layering: Layering, own: Tensor) -> Probe:
    """Probe the module. `own` are the logits by its own attention, which must not change."""
    prepare(module, model_type)
    measured = probe(module, model_type, layering)
    if not is_close(measured.logits, own, OWN_TOLERANCE):
        raise UnsupportedModel(
            model_type,
            "with their attention redirected and positions given they say something else",
        )
    return measured


def _with_hooks(
    module: nn.Module, facts: ModelFacts, kv_dtype: torch.dtype, device: torch.device
) -> LoadedModel:
    context = AttentionContext()
    for index, attention in attention_modules(module):
        if index < facts.num_layers:
            attach_hook(attention, PagedAttentionHook(facts.layers[index], context), context)
    show_states(module, context)
    return LoadedModel(module, context, facts, kv_dtype, device)
