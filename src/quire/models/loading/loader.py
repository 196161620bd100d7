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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from quire.models.config import FailedCheck, LayerFacts, ModelDtype
from quire.models.kv.huge_pages import return_free_memory
from quire.models.layers.decoder_parts import has_decoder_parts
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.relocation import relocate_weights
from quire.models.layers.weight_uses import WeightUses
from quire.models.loading.checkpoint import ModelSource, Progress, locate
from quire.models.loading.checkpoint_kind import has_head
from quire.models.loading.checks.extent import (
    log_left_out,
    refuse_more_layers,
    refuse_more_weights,
)
from quire.models.loading.checks.measure import ModuleMeasurement, measure, own_logits
from quire.models.loading.checks.own_text import read_own_text
from quire.models.loading.checks.probe import OTHER_DTYPE, probe_without_weights, refuse_nan
from quire.models.loading.checks.structure import check_structure
from quire.models.loading.dtype_choice import choose_dtype, log_dtype
from quire.models.loading.end_tokens import within_vocabulary
from quire.models.loading.fast_paths import (
    InitialCheck,
    ModuleBaseline,
    look,
    use_experts,
    use_kernels,
)
from quire.models.loading.kept_weights import PackedWeightsFile
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.state_dict import has_parts
from quire.models.loading.support import layering, max_model_len, refuse_unsupported
from quire.models.loading.weight_files import read_headers
from quire.models.parallel.plan import own_code_refusal, plan_shards
from quire.models.parallel.ranks import Ranks, WeightlessRanks
from quire.models.parallel.sharding import Share, shard_module
from quire.models.target import Target

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ADVICE = (
    "Pass --dtype float32 if that is not so yet: it tells whether the number format is to blame. "
    "Report the model and this line"
)


def load_model(
    source: ModelSource,
    *,
    dtype: ModelDtype,
    device: torch.device,
    on_progress: Progress,
    kernels: ModelKernels | None = None,
) -> LoadedModel:
    """Load a model, check that it is served right, and replace what `kernels` compute faster.

    What kernels pack is taken from the source's file if it has it, else kept there.
    `on_progress` gets the phases download, weights and probe. `kernels` compute linear layers of
    their dtypes, and what is between them; None means that torch does. Raises
    CheckpointError or UnsupportedModel, the latter also where the kernels quantise and no weight
    can be quantised, or products over quantised weights are wrong.
    """
    folder = locate(source, on_progress)
    checkpoint = _open_checkpoint(folder, trust_remote_code=source.trust_remote_code)
    if source.packed_file is not None:
        checkpoint = replace(checkpoint, kept=PackedWeightsFile(source.packed_file))
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
    folder = locate(source, on_progress)
    checkpoint = _open_checkpoint(folder, trust_remote_code=source.trust_remote_code)
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
    is_wider = kernels is not None and device.type == "cpu" and chosen == torch.float32
    is_lazy = is_wider or has_parts(checkpoint.folder)
    module = _read_weights(checkpoint, chosen, on_progress, is_lazy=is_lazy)
    on_progress("probe", 0, 1)
    if share is not None:
        share.keep(module)
    nn.Module.to(module, device)
    seen = _see(checkpoint, config, module, kernels)
    looked = look(module, partial(own_logits, module, config), seen, kernels)
    measured = _measured(checkpoint.folder, config, module, looked)
    if share is not None:
        share.check(measured.loaded.facts.layers)
    heads = checkpoint.skeleton is None or has_head(checkpoint.folder)
    experts = use_experts(measured, looked.bound)
    loaded = replace(measured.loaded, experts=experts, has_head=heads, left_out=looked.left_out)
    if kernels is not None:
        return_free_memory()
        more = use_kernels(measured, kernels, looked.bound, seen)
        loaded = replace(loaded, left_out=looked.left_out + more)
        relocate_weights(module, kernels.disabled)
    return_free_memory()
    on_progress("probe", 1, 1)
    return loaded


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint of a family that is served. `skeleton` is its module without weights; None where
    the checkpoint brings code of its own, which need not run on the meta device. `layers` are those
    that the skeleton shows. `is_checked` says that a small copy was found right. `kept` has its
    packed weights from one load to the next."""

    folder: Path
    config: "PretrainedConfig"
    skeleton: "PreTrainedModel | None"
    layers: Mapping[int, LayerFacts] = field(default_factory=dict)
    is_checked: bool = False
    kept: PackedWeightsFile | None = None


class CodeFacts(NamedTuple):
    """Facts of a model's code with its configuration, known without its weights.

    is_checked: a small copy was checked; else the weights alone will tell.
    is_plain_decoder: all its layers may run as one call of the kernels.
    """

    is_checked: bool
    is_plain_decoder: bool


def check_code(folder: Path) -> CodeFacts:
    """Check what can be checked of a causal model before its weights are read. Raises
    CheckpointError or UnsupportedModel."""
    checkpoint = _open_checkpoint(folder, trust_remote_code=False)
    skeleton = checkpoint.skeleton
    assert skeleton is not None, "there is one unless the code is the checkpoint's own"
    return CodeFacts(checkpoint.is_checked, has_decoder_parts(skeleton))


def _open_checkpoint(folder: Path, *, trust_remote_code: bool) -> _Checkpoint:
    """Refuse what can be refused of a checkpoint before its weights are read."""
    from quire.models.loading import pretrained

    config = pretrained.read_config(folder, trust_remote_code=trust_remote_code)
    text_config = config.get_text_config()
    refuse_unsupported(text_config)
    if trust_remote_code:
        return _Checkpoint(folder, config, None)
    tensors = read_headers(folder)
    refuse_more_layers(folder, text_config.num_hidden_layers, tensors)
    skeleton = pretrained.build_without_weights(folder, config)
    refuse_more_weights(folder, skeleton, tensors)
    log_left_out(skeleton, tensors)
    layers = probe_without_weights(skeleton, text_config.model_type, layering(text_config))
    return _Checkpoint(folder, config, skeleton, layers, check_structure(config, skeleton))


def _read_weights(
    checkpoint: _Checkpoint, dtype: torch.dtype | None, on_progress: Progress, *, is_lazy: bool
) -> "PreTrainedModel":
    """Return the module on the CPU, with its weights in `dtype`. Where `is_lazy`, matrices of fewer
    bits stay as they are stored, unless the checkpoint brings code of its own."""
    from quire.models.loading import pretrained

    on_tensor = partial(on_progress, "weights")
    folder, config, skeleton = checkpoint.folder, checkpoint.config, checkpoint.skeleton
    if is_lazy and skeleton is not None:
        assert dtype is not None, "only weights of no known dtype are loaded as they are"
        return pretrained.load_lazy(folder, config, skeleton, dtype, on_tensor)
    return pretrained.load_module(
        folder,
        config,
        dtype=dtype,
        trust_remote_code=skeleton is None,
        on_tensor=on_tensor,
    )


def _see(
    checkpoint: _Checkpoint,
    config: "PretrainedConfig",
    module: "PreTrainedModel",
    kernels: ModelKernels | None,
) -> ModuleBaseline:
    """Run the module by its own attention, over packed weights where an earlier load has kept
    them. Raises CheckpointError or FailedCheck."""
    from quire.models.loading import pretrained

    folder, file = checkpoint.folder, checkpoint.kept
    kept = file.adopt(module, kernels) if file is not None and kernels is not None else None
    with WeightUses() as uses:
        own = _own_logits(folder, config, module)
    if kept is not None or kernels is None or kernels.are_exact:
        return ModuleBaseline(own, uses, None, file, kept)
    with uses, pretrained.own_attention(module):
        text = read_own_text(folder, module, max_model_len(config))
        return ModuleBaseline(own, uses, text, file)


def _own_logits(folder: Path, config: "PretrainedConfig", module: "PreTrainedModel") -> Tensor:
    """Return the logits of the checks' tokens by the module's own attention, which are finite.
    Raises CheckpointError or FailedCheck for others."""
    own = own_logits(module, config)
    if own.isnan().any():
        refuse_nan(folder, module)
    if not own.isfinite().all():
        raise FailedCheck(config.model_type, f"logits overflow in {own.dtype}", OTHER_DTYPE)
    return own


def _measured(
    folder: Path, config: "PretrainedConfig", module: "PreTrainedModel", looked: InitialCheck
) -> ModuleMeasurement:
    """Return the model, measured and found right."""
    from quire.models.loading import pretrained

    measured = measure(module, config, looked.own, looked.own.device)
    measured.refuse_beyond(looked.bound, ADVICE)
    loaded = measured.loaded
    eos_token_ids = within_vocabulary(
        pretrained.eos_token_ids(folder, module), loaded.facts.vocab_size
    )
    facts = replace(loaded.facts, eos_token_ids=eos_token_ids)
    return replace(measured, loaded=replace(loaded, facts=facts))
