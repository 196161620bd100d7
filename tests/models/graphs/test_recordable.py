"""A decode step can be recorded, and another between calls of attention, where nothing of it waits
for the device, and nothing comes from the host. Shown on `meta`, by families; those that fall short
are computed as ever.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from quire.models.attention.latent import LatentHook
from quire.models.attention.triton.inputs import StepInputs
from quire.models.config import KVOptions, LayerFacts
from quire.models.experts.replacement import replace_experts
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.crossings import HostTransferDetector
from quire.models.hf import HOOK, attach_hook, attention_modules
from quire.models.layers.temperature import TemperatureHook
from quire.models.loading.loaded_model import LoadedModel
from quire.models.recurrent.kernels import DeltaNetInputs, DeltaNetWeights, ScanInputs
from quire.models.recurrent.pieces import Pieces
from tests.long import long_but_for
from tests.models.driver import load
from tests.models.families import SERVED
from tests.models.reference import BLOCK_SIZE, MAX_LEN, References
from tests.models.representatives import FAMILIES

META = torch.device("meta")
"""Its tensors have shapes and no values: what needs a value raises."""
MAX_SEQS = 3


@dataclass(frozen=True)
class Shapes:
    """Attention as far as shapes go."""

    inputs: StepInputs

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        assert all(each.is_meta for each in (query, key, value))
        return query.new_empty(len(query), query.shape[1], layer.v_head_size)


class StateShapes:
    """Recurrent kernels as far as shapes go."""

    is_replayable = True

    def causal_conv(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        states: Tensor,
        pieces: Pieces,
        *,
        is_activated: bool,
    ) -> Tensor:
        assert rows.is_meta and weight.is_meta
        return rows.new_empty(rows.shape)

    def gated_delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        decay: Tensor,
        beta: Tensor,
        states: Tensor,
        pieces: Pieces,
    ) -> Tensor:
        assert all(each.is_meta for each in (query, key, value, decay, beta))
        return value.new_empty(value.shape)

    def gated_delta_net(
        self,
        inputs: DeltaNetInputs,
        weights: DeltaNetWeights,
        states: tuple[Tensor, Tensor],
        pieces: Pieces,
    ) -> Tensor:
        assert all(each.is_meta for each in inputs)
        return inputs.gate.new_empty(inputs.gate.shape)

    def state_space(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        return _scanned(inputs)

    def selective_scan(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        return _scanned(inputs)


def _scanned(inputs: ScanInputs) -> Tensor:
    assert all(each.is_meta for each in inputs if each is not None)
    return inputs.rows.new_empty(inputs.rows.shape)


def without_values(loaded: LoadedModel) -> None:
    """As on a GPU, by grouped products of experts, which know every dtype."""
    replace_experts(loaded.module)
    for part in loaded.module.modules():
        for name, weight in part.named_parameters(recurse=False):
            empty = torch.empty_like(weight, device=META)
            setattr(part, name, nn.Parameter(empty, requires_grad=False))
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty_like(buffer, device=META))
    for _, attention in attention_modules(loaded.module):
        hook = getattr(attention, HOOK, None)
        while isinstance(hook, LatentHook | TemperatureHook):
            hook = hook.inner
        if hook is not None:
            attach_hook(attention, hook, loaded.context)


@torch.inference_mode()
def crossings_of_a_step(family: str, references: References) -> int:
    loaded = load(references.checkpoint(family))
    without_values(loaded)
    model = replace(loaded.attach(1, BLOCK_SIZE, num_states=2), kernels=StateShapes())
    tables = loaded.facts.layout(KVOptions()).tables
    limits = DecodeLimits(MAX_SEQS, MAX_LEN, -(-MAX_LEN // BLOCK_SIZE), len(tables))
    buffers = Buffers(limits, META)
    num = 0
    for size, rows in ((1, 1), (MAX_SEQS, MAX_SEQS), (MAX_SEQS, MAX_SEQS - 1)):
        ids, positions = buffers.input_ids[:size], buffers.positions[:size]
        with HostTransferDetector(META.type) as crossings:
            logits = model.compute(
                ids,
                positions,
                buffers.logits_indices[:rows],
                Shapes(buffers.inputs(size)),
                buffers.pieces(size),
            )
        assert logits.is_meta and logits.shape == (rows, model.vocab_size)
        num += len(crossings.places)
    return num


@long_but_for(FAMILIES.keys() & SERVED.keys(), "family", SERVED)
def test_a_step_can_be_recorded(family: str, references: References) -> None:
    assert crossings_of_a_step(family, references) == 0
