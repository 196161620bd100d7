"""Outlines a model by its configuration alone: the module that it describes is built on the meta
device and runs once without numbers, which shows its layers, its weights, and the memory of a step.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire.models.attention.hook import AttentionContext
from quire.models.attention.latent import is_latent
from quire.models.config import FORWARD_ERRORS, KVOptions, ModelDtype, ModelFacts, UnsupportedModel
from quire.models.experts.replacement import CLASS_NAME
from quire.models.hf import attach_hook, attention_modules, prepare
from quire.models.layers.linears import planned_bytes
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading import pretrained
from quire.models.loading.checks.probe import ProbeRecord, RecordingHook
from quire.models.loading.dtype_choice import choose_dtype
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.module_shape import ModuleCalls, ModuleFacts, shape_of, top_k_of
from quire.models.loading.peak_memory import PeakMemory
from quire.models.loading.safetensors.stored_tensors import StoredTensor
from quire.models.loading.support import layering, max_model_len, refuse_unsupported
from quire.models.loading.weight_files import read_headers
from quire.models.parallel.linears import WRAPPED
from quire.models.parallel.plan import plan_shards
from quire.models.parallel.ranks import WeightlessRanks
from quire.models.parallel.sharding import shard_module
from quire.models.recurrent.hook import recurrent_layers
from quire.models.shape import ModelShape
from quire.models.weights.group_form import GroupForm

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class OutlineOptions:
    """The device, the dtype and the kernels that the model will compute with; None means torch's.
    `num_tokens` are those of the step whose memory is wanted. Of several ranks, one is outlined."""

    device: torch.device
    dtype: ModelDtype
    kernels: ModelKernels | None
    num_tokens: int
    kv_options: KVOptions
    num_ranks: int = 1


@dataclass(frozen=True, slots=True)
class Outline:
    """A model without weights.

    loaded: the facts that do not depend on the values of the weights.
    weight_bytes: the bytes of the weights.
    num_tokens, step_bytes: the bytes that a step of so many tokens, with logits of each, allocates
        at its peak where torch computes it, beside the scratch of attention.
    """

    loaded: LoadedModel
    weight_bytes: int
    shape: ModelShape
    num_tokens: int
    step_bytes: int


@dataclass(frozen=True, slots=True)
class OutliningHook:
    """Lets `inner` record the layer of its call, keeps its number of query heads, and answers with
    an output of the right size."""

    inner: RecordingHook
    num_heads: dict[int, int]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        self.num_heads[self.inner.index] = query.shape[1]
        self.inner.note(query, key, value, extras)
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


@dataclass(frozen=True, slots=True)
class OutlinedExperts:
    """Stands in for the forward of a module of experts, whose own asks which experts are hit. It
    allocates what the products of `top_k` experts a token do."""

    top_k: int
    num_columns: int

    def __call__(self, hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
        num_rows = hidden_states.shape[:-1].numel() * self.top_k
        products = hidden_states.new_empty(num_rows, self.num_columns)
        del products
        return torch.empty_like(hidden_states)


def read_config(folder: Path) -> "PretrainedConfig":
    """Return the configuration of a model of a kind that is served. Raises CheckpointError or
    UnsupportedModel."""
    config = pretrained.read_config(folder, trust_remote_code=False)
    refuse_unsupported(config.get_text_config())
    return config


def stored_dtype(folder: Path, config: "PretrainedConfig") -> torch.dtype | None:
    """Return the dtype of the weights: of the files, if there are any, or else as the configuration
    has it. Raises CheckpointError."""
    stored = pretrained.stored_dtype(config.get_text_config(), read_headers(folder))
    return stored or pretrained.stored_dtype(config, ())


def outline(folder: Path, config: "PretrainedConfig", options: OutlineOptions) -> Outline:
    """Return the outline of a model whose configuration was read from `folder`. Raises
    CheckpointError, and UnsupportedModel where it cannot be served, or run without numbers."""
    text = config.get_text_config()
    stored = stored_dtype(folder, config)
    chosen = choose_dtype(options.dtype, stored, options.device) or stored or torch.float32
    module = pretrained.build_without_weights(folder, config, chosen)
    if options.num_ranks > 1:
        plan = plan_shards(module, text, options.num_ranks)
        shard_module(module, plan, WeightlessRanks(options.num_ranks))
    linears, heads = ((), ()) if (k := options.kernels) is None else (k.linears, k.heads)
    packed = planned_bytes(module, linears, stored, heads, _forms(module, read_headers(folder)))
    states = recurrent_layers(module)
    run = _Run(module, ProbeRecord(text.model_type, layering(text), states))
    num_tokens = min(options.num_tokens, max_model_len(text))
    top_k = top_k_of(text)
    step_bytes, vocab_size = run.forward(num_tokens, top_k)
    facts = ModelFacts(
        model_type=text.model_type,
        layers=tuple(run.record.numbered().values()),
        recurrent=states,
        vocab_size=vocab_size,
        max_model_len=max_model_len(text),
        eos_token_ids=(),
        dtype=str(chosen).removeprefix("torch."),
        dtype_bytes=chosen.itemsize,
    )
    tensors = [*module.parameters(), *module.buffers()]
    weight_bytes = sum(packed.get(id(tensor), tensor.nbytes) for tensor in tensors)
    num_heads = dict(enumerate(count for _, count in sorted(run.num_heads.items())))
    return Outline(
        LoadedModel(module, AttentionContext(), facts, chosen, options.device),
        weight_bytes,
        shape_of(
            module, facts, ModuleFacts(num_heads, run.calls, packed, top_k, options.kv_options)
        ),
        num_tokens,
        step_bytes,
    )


def _forms(module: nn.Module, tensors: Collection[StoredTensor]) -> dict[int, GroupForm]:
    """Return the forms of the weights that are stored in groups, by the `id` of the parameter. A
    rank's share of columns stays so where it is whole blocks."""
    stored = {tensor.name: tensor for tensor in tensors if tensor.form is not None}
    forms = {}
    for name, parameter in module.named_parameters():
        tensor = stored.get(".".join(part for part in name.split(".") if part not in WRAPPED))
        if tensor is not None and tensor.form and parameter.shape[-1] % tensor.block_size == 0:
            forms[id(parameter)] = tensor.form
    return forms


@dataclass(frozen=True, slots=True)
class _Run:
    """One forward pass of a module on the meta device, and its findings."""

    module: "PreTrainedModel"
    record: ProbeRecord
    num_heads: dict[int, int] = field(default_factory=dict)
    calls: ModuleCalls = field(default_factory=ModuleCalls)

    def forward(self, num_tokens: int, top_k: int) -> tuple[int, int]:
        """Run the module over `num_tokens`, and return the bytes at the peak and the number of
        logits of a token. Raises UnsupportedModel."""
        module, record = self.module, self.record
        record.refuse_without_positions(module)
        prepare(module, record.model_type)
        positions = torch.arange(num_tokens, device=META)
        self._attach(AttentionContext(positions=positions), top_k)
        memory = PeakMemory()
        try:
            with torch.inference_mode(), self.calls.of(module), memory:
                logits = module(
                    input_ids=torch.zeros_like(positions)[None],
                    position_ids=positions[None],
                    use_cache=False,
                    logits_to_keep=positions,
                ).logits
        except FORWARD_ERRORS as error:
            raise UnsupportedModel(
                record.model_type, f"they do not run without their weights: {error!r}"
            ) from error
        record.refuse_incomplete()
        return memory.peak_bytes, int(logits.shape[-1])

    def _attach(self, context: AttentionContext, top_k: int) -> None:
        for index, attention in attention_modules(self.module):
            is_causal = bool(getattr(attention, "is_causal", True))
            inner = RecordingHook(self.record, index, is_causal, is_latent(attention))
            attach_hook(attention, OutliningHook(inner, self.num_heads), context)
        for part in self.module.modules():
            if CLASS_NAME in type(part).__name__:
                width = max((weight.shape[-2] for weight in part.parameters()), default=0)
                setattr(part, "forward", OutlinedExperts(top_k, width))  # noqa: B010
