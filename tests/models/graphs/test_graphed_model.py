"""Decode steps over tensors that stay where they are say what steps of fresh tensors say, on a
stand-in for a GPU's graphs: a graph here is the same operations again, over the same tensors."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from quire.models.attention.backend import AttentionBackend, AttentionStep
from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch
from quire.models.config import KVOptions, LayerFacts
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.decode import record_decode
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.graphs.recorded import NO_MEMORY, CaptureResult
from quire.models.hf import HFModel
from quire.models.loading.loaded_model import LoadedModel
from tests.models.driver import generate_greedy, load
from tests.models.graphs.device import Fault, StandInDevice, Torch, ignore_progress
from tests.models.paging import Paging
from tests.models.reference import BLOCK_SIZE, MAX_LEN, NUM_NEW, References, fidelity_prompts

CPU = torch.device("cpu")
FAMILIES = ("llama", "gemma2", "gpt_oss", "llama4_text", "deepseek_v3")
MAX_SEQS = 6


@dataclass(frozen=True)
class FromTensors:
    """Attends by what the tensors hold when it attends, and by nothing said before."""

    attention: AttentionBackend
    device: StandInDevice

    def over(self, inputs: StepInputs) -> AttentionStep:
        return FromTensorsStep(self.attention, self.device, inputs)


@dataclass(frozen=True)
class FromTensorsStep:
    attention: AttentionBackend
    device: StandInDevice
    inputs: StepInputs

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = query.new_empty(len(query), query.shape[1], layer.v_head_size)

        def launch() -> None:
            out.zero_()
            batch = self._batch()
            if count := len(batch.context_lens):
                step = self.attention.begin(batch)
                out[:count] = step.attend(layer, query[:count], key[:count], value[:count], sinks)

        self.device.launch(launch)
        return out

    def _batch(self) -> Batch:
        starts = self.inputs.query_starts.tolist()
        count = starts[-1]
        assert starts == [min(place, count) for place in range(len(starts))]
        assert all((slots[count:] < 0).all() for slots in self.inputs.slots)
        positions = self.inputs.context_lens[:count].long() - 1
        return Batch(
            input_ids=positions,
            positions=positions,
            slots=tuple(slots[:count] for slots in self.inputs.slots),
            block_tables=tuple(table[:count] for table in self.inputs.block_tables),
            query_starts=tuple(starts[: count + 1]),
            context_lens=tuple(self.inputs.context_lens[:count].tolist()),
            logits_indices=positions,
        )


class Subject(NamedTuple):
    """A model with its decode steps captured where that could be done, and what is told of it."""

    model: HFModel | GraphedModel
    recorded: CaptureResult

    @property
    def largest(self) -> int:
        return self.recorded.largest

    @property
    def why_not(self) -> str:
        return self.recorded.why_not


def recorded(
    loaded: LoadedModel, paging: Paging, device: StandInDevice, max_seqs: int = MAX_SEQS
) -> Subject:
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    limits = DecodeLimits(max_seqs, MAX_LEN, -(-MAX_LEN // BLOCK_SIZE), len(paging.tables))
    backend = FromTensors(model.backend, device)
    found = record_decode(model, backend, Buffers(limits, CPU), device, ignore_progress)
    return Subject(with_recorded(model, found), found)


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_say_what_generate_says(family: str, references: References) -> None:
    prompts = fidelity_prompts()[:MAX_SEQS]
    loaded = load(references.checkpoint(family), "float32")
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE, tables=tables)
    device = StandInDevice()
    graphed = recorded(loaded, paging, device)
    assert graphed.largest == MAX_SEQS and not graphed.why_not
    texts = generate_greedy(graphed.model, paging, prompts, num_new=NUM_NEW, seed=3)
    assert texts == references.greedy_texts(family)[:MAX_SEQS]
    assert device.num_replays > NUM_NEW


@pytest.mark.parametrize("fault", [Fault.WAIT, Fault.UNSEEN_WAIT, Fault.BEGIN, Fault.END])
def test_what_cannot_be_captured_is_computed_as_ever(
    fault: Fault, references: References, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = fidelity_prompts()[:2]
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE)
    loaded = load(references.checkpoint("llama"), "float32")
    device = StandInDevice(Torch.NOTHING, fault, frozenset({1}))
    eager = recorded(loaded, paging, device)
    assert not isinstance(eager.model, GraphedModel) and eager.largest == 0
    assert eager.why_not in caplog.text
    assert "LlamaForCausalLM launches decode steps operation by operation" in caplog.text
    device.free_cached()
    texts = generate_greedy(eager.model, paging, prompts, num_new=4, seed=3)
    assert texts == [text[:4] for text in references.greedy_texts("llama")[:2]]


def test_steps_larger_than_memory_allows_are_launched(references: References) -> None:
    prompts = fidelity_prompts()[:MAX_SEQS]
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE)
    loaded = load(references.checkpoint("llama"), "float32")
    device = StandInDevice(Torch.NOTHING, Fault.MEMORY, frozenset({0}))
    graphed = recorded(loaded, paging, device)
    assert graphed.largest == 2
    texts = generate_greedy(graphed.model, paging, prompts, num_new=4, seed=3)
    assert texts == [text[:4] for text in references.greedy_texts("llama")[:MAX_SEQS]]


def test_without_memory_for_any_size_all_steps_are_launched(references: References) -> None:
    paging = Paging(2, MAX_LEN, block_size=BLOCK_SIZE)
    loaded = load(references.checkpoint("llama"), "float32")
    device = StandInDevice(Torch.NOTHING, Fault.CHECK_MEMORY, frozenset(range(MAX_SEQS)))
    eager = recorded(loaded, paging, device)
    assert not isinstance(eager.model, GraphedModel)
    assert eager.why_not == NO_MEMORY


def test_a_step_whose_states_are_needed_is_launched(references: References) -> None:
    """What was captured makes logits alone."""
    loaded, device = load(references.checkpoint("llama"), "float32"), StandInDevice()
    graphed = recorded(loaded, Paging(1, MAX_LEN, block_size=BLOCK_SIZE), device)
    assert isinstance(graphed.model, GraphedModel)
    before = device.num_replays
    one = torch.zeros(1, dtype=torch.int64)
    batch = Batch(
        input_ids=one + 5,
        positions=one,
        slots=(one + BLOCK_SIZE,),
        block_tables=(torch.ones(1, 1, dtype=torch.int32),),
        query_starts=(0, 1),
        context_lens=(1,),
        logits_indices=one[:0],
        states_indices=one,
    )
    logits, states = graphed.model.forward_with_states(batch)
    assert states is not None
    assert (logits.shape[0], states.shape) == (0, (1, loaded.facts.hidden_size))
    assert device.num_replays == before
