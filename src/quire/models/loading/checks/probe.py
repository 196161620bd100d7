"""Measures a loaded module with a tiny forward: what its layers pass to attention, and the logits,
which must be those by the module's own attention. A model that cannot be served is refused."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import NamedTuple, Self
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from quire.cache.spec import FULL
from quire.models.attention.hook import AttentionContext
from quire.models.attention.latent import is_latent
from quire.models.config import (
    FORWARD_ERRORS,
    CheckpointError,
    FailedCheck,
    LayerFacts,
    RecurrentLayer,
    UnsupportedModel,
)
from quire.models.hf import attach_hook, attention_modules, prepare, sinks_of
from quire.models.loading.checks.packing import NUM_TOKENS, ROWS
from quire.models.loading.support import Layering
from quire.models.recurrent.hook import recurrent_layers

UNDERSTOOD = frozenset(
    {"dropout", "scaling", "sliding_window", "softcap", "s_aux", "position_ids"},
)
HARMLESS = frozenset(
    {"logits_to_keep", "output_attentions", "output_router_logits", "return_dict", "use_cache"}
)
NAMES = {"attention_mask": "an attention mask of their own"}
OTHER_DTYPE = "Pass another --dtype: bfloat16 and float32 hold larger numbers than float16"
NO_TOKENS = (0,) * NUM_TOKENS
"""Tokens of a forward without numbers."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The results of a probe.

    layers: by their index in the module, the layers with attention, in their order.
    recurrent: the layers that keep a state.
    """

    layers: Mapping[int, LayerFacts]
    recurrent: tuple[RecurrentLayer, ...]
    kv_dtype: torch.dtype
    logits: Tensor
    """[len(ROWS), vocab_size], of `check_tokens`."""


class KeptKV(NamedTuple):
    """The keys and values of a layer, as it passed them to attention, for as long as the module
    holds them; and copies of them, None where they have no numbers."""

    tensors: tuple[ReferenceType[Tensor], ...]
    copies: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, key: Tensor, value: Tensor) -> Self:
        """Return a record of these keys and values."""
        given = (key, value)
        copies = tuple(None if each.is_meta else each.clone() for each in given)
        return cls(tuple(map(ref, given)), copies)

    def is_same(self, key: Tensor, value: Tensor) -> bool:
        """Return whether another layer passes these very tensors, with the same numbers in them;
        tensors without numbers are the same by themselves."""
        return all(
            kept() is each and (copy is None or torch.equal(each, copy))
            for each, kept, copy in zip((key, value), self.tensors, self.copies, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """A record of what a forward has shown of the module's layers so far. `recurrent` are those
    that keep a state, which need not attend; `kept` are the keys and values that layers brought."""

    model_type: str
    layering: Layering
    recurrent: tuple[RecurrentLayer, ...] = ()
    layers: dict[int, LayerFacts] = field(default_factory=dict)
    dtypes: set[torch.dtype] = field(default_factory=set)
    kept: dict[int, KeptKV] = field(default_factory=dict)

    def source_of(self, layer: LayerFacts, key: Tensor, value: Tensor) -> int | None:
        """Return the index of the earlier layer over whose K and V this one attends, if it keeps
        them as long as this one needs them: a module that shares them passes the same tensors
        again, unchanged."""
        for index, kept in self.kept.items():
            if self.layers[index].pattern in (layer.pattern, FULL) and kept.is_same(key, value):
                return index
        self.kept[layer.index] = KeptKV.of(key, value)
        return None

    def refuse(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(self.model_type, why)

    def numbered(self) -> dict[int, LayerFacts]:
        """Return the layers with attention by their index in the module, each with its index among
        themselves."""
        numbers: dict[int | None, int] = {
            index: own for own, index in enumerate(sorted(self.layers))
        }
        return {
            index: replace(layer, index=numbers[index], kv_source=numbers.get(layer.kv_source))
            for index, layer in sorted(self.layers.items())
        }

    def refuse_without_positions(self, module: nn.Module) -> None:
        """Raise UnsupportedModel for a module with attention that takes no positions."""
        takes_positions = "position_ids" in signature(module.forward).parameters
        if self.layering.has_attention and not takes_positions:
            raise self.refuse("they take a token's place in the row for its position")

    def refuse_incomplete(self) -> None:
        num_layers = self.layering.num_layers
        if max(self.layers, default=0) >= num_layers:
            raise self.refuse(f"more layers attend than the {num_layers} configured")
        stateful = {layer.index for layer in self.recurrent}
        attending = {index for index in range(num_layers) if self.layering.attends(index)}
        silent = sorted(attending - stateful - set(self.layers))
        if silent:
            raise self.refuse(f"layers {silent} of {num_layers} do not call the attention function")
        if len(self.dtypes) > 1:
            raise self.refuse("their layers differ in dtype, not supported yet")


@dataclass(frozen=True, slots=True)
class RecordingHook:
    """Attends over the tokens of the call in plain torch, and records the facts of its layer."""

    record: ProbeRecord
    index: int
    is_causal: bool
    is_latent: bool

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        layer = self.note(query, key, value, extras)
        return _attend(layer, query, key, value, sinks_of(extras))

    def note(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> LayerFacts:
        """Record the facts of a call's layer, and return them. Raises UnsupportedModel."""
        self._refuse_unknown(extras)
        if not self.is_causal:
            raise self.record.refuse("their attention is not causal")
        if self.index in self.record.layers:
            raise self.record.refuse(f"layer {self.index} attends twice")
        scaling, softcap = extras.get("scaling"), extras.get("softcap")
        layer = LayerFacts(
            index=self.index,
            num_kv_heads=key.shape[1],
            head_size=key.shape[3],
            v_head_size=value.shape[3],
            scale=scaling if isinstance(scaling, float) else query.shape[3] ** -0.5,
            window_size=self._window(extras),
            chunk_size=self.record.layering.chunk_size_of(self.index),
            softcap=softcap if isinstance(softcap, float) else None,
            has_sinks=sinks_of(extras) is not None,
            is_latent=self.is_latent,
        )
        source = self.record.source_of(layer, key, value)
        layer = replace(layer, kv_source=source)
        self.record.layers[self.index] = layer
        self.record.dtypes.add(key.dtype)
        return layer

    def _window(self, extras: Mapping[str, object]) -> int | None:
        window = extras.get("sliding_window") or self.record.layering.window_size_of(self.index)
        return window if isinstance(window, int) else None

    def _refuse_unknown(self, extras: Mapping[str, object]) -> None:
        for name, given in extras.items():
            if given is None or name in UNDERSTOOD or name in HARMLESS:
                continue
            need = NAMES.get(name, f"the attention argument {name}")
            raise self.record.refuse(f"they need {need}, not supported yet")


def probe(
    module: nn.Module, model_type: str, layering: Layering, tokens: Sequence[int]
) -> ProbeResult:
    """Measure a prepared module (`hf.prepare`). Raises UnsupportedModel for what is not served."""
    record = ProbeRecord(model_type, layering, recurrent_layers(module))
    with _recording(module, record) as positions:
        logits = first_logits(module, model_type, tokens, position_ids=positions[None])
    record.refuse_incomplete()
    if not torch.isfinite(logits).all():
        raise FailedCheck(model_type, f"logits overflow in {logits.dtype}", OTHER_DTYPE)
    dtype = record.dtypes.pop() if record.dtypes else next(module.parameters()).dtype
    return ProbeResult(record.numbered(), record.recurrent, dtype, logits)


def probe_without_weights(
    module: nn.Module, model_type: str, layering: Layering
) -> dict[int, LayerFacts]:
    """Probe a module without weights, so that a model is refused before they are read.

    Where a forward needs numbers, as to choose an expert, only what came before is checked. Returns
    the layers with attention that were seen, by their index in the module, each with its index
    among themselves.
    """
    record = ProbeRecord(model_type, layering, recurrent_layers(module))
    prepare(module, model_type)
    with _recording(module, record) as positions:
        try:
            _forward(module, NO_TOKENS, position_ids=positions[None])
        except FORWARD_ERRORS:
            return record.numbered()
    record.refuse_incomplete()
    return record.numbered()


@contextmanager
def _recording(module: nn.Module, record: ProbeRecord) -> Iterator[Tensor]:
    """Give each attention module a `RecordingHook`, and yield the positions of the tokens."""
    record.refuse_without_positions(module)
    device = next(module.parameters()).device
    positions = torch.arange(NUM_TOKENS, device=device)
    context = AttentionContext(positions=positions)
    for index, attention in attention_modules(module):
        is_causal = bool(getattr(attention, "is_causal", True))
        attach_hook(
            attention, RecordingHook(record, index, is_causal, is_latent(attention)), context
        )
    yield positions


def first_logits(
    module: nn.Module, model_type: str, tokens: Sequence[int], **options: Tensor
) -> Tensor:
    """Return the logits [len(ROWS), vocab_size] of `tokens`, by the attention that the module has
    now.

    `options` may hold `position_ids`; without, the module counts for itself. Raises
    UnsupportedModel if the forward fails.
    """
    try:
        logits = _forward(module, tokens, **options)
    except torch.OutOfMemoryError:
        raise
    except FORWARD_ERRORS as error:
        raise UnsupportedModel(model_type, f"a first forward failed: {error!r}") from error
    if logits.shape[:2] != (1, len(ROWS)):
        raise UnsupportedModel(model_type, "their head cannot be limited to the sampled rows")
    return logits[0]


@torch.inference_mode()
def _forward(module: nn.Module, tokens: Sequence[int], **options: Tensor) -> Tensor:
    from quire.models.loading import pretrained

    device = next(module.parameters()).device
    with pretrained.quiet():  # it advises to install kernels of recurrent layers, which stay unused
        logits: Tensor = module(
            input_ids=torch.tensor([tokens], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(ROWS, device=device),
            **options,
        ).logits
    return logits


def refuse_nan(folder: Path, module: nn.Module) -> None:
    """Raise CheckpointError if weights are NaN; logits may be for other reasons, as an overflow."""
    names = [name for name, weight in module.named_parameters() if weight.isnan().any()]
    if names:
        raise CheckpointError(f"{folder}: its weights hold NaN: {', '.join(names[:3])}")


def _attend(
    layer: LayerFacts, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
) -> Tensor:
    num_repeats = query.shape[1] // layer.num_kv_heads
    keys = key.repeat_interleave(num_repeats, dim=1)
    values = value.repeat_interleave(num_repeats, dim=1)
    scores = (query @ keys.transpose(2, 3)).float() * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    places = torch.arange(query.shape[2], device=query.device)
    distance = places[:, None] - places
    visible = (distance >= 0) & (distance < (layer.window_size or len(places)))
    if layer.chunk_size is not None:
        visible &= places[:, None] // layer.chunk_size == places // layer.chunk_size
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = pad(scores, (0, 1))
        scores[..., -1] = sinks[:, None]
    weights = scores.softmax(-1)[..., : len(places)].to(value.dtype)
    return torch.matmul(weights, values).transpose(1, 2)
