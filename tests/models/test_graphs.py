"""Decode steps over tensors that stay where they are say what steps of fresh tensors say, on a
stand-in for a GPU's graphs: a record here is the same call again, over the same tensors."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.attention.backend import AttentionBackend, AttentionStep
from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch, Model
from quire.models.config import KVOptions, LayerFacts
from quire.models.graphs import Buffers, DecodeLimits, GraphedModel, Launch, ladder, record_decode
from quire.models.loading.loader import LoadedModel
from tests.models.driver import generate_greedy, load
from tests.models.paging import Paging
from tests.models.reference import BLOCK_SIZE, MAX_LEN, NUM_NEW, References, fidelity_prompts

CPU = torch.device("cpu")
FAMILIES = ("llama", "gemma2", "gpt_oss", "llama4_text", "deepseek_v3")
MAX_SEQS = 6


@dataclass
class Recorder:
    """`num_launched` counts what is launched again."""

    num_launched: int = 0

    def record(self, compute: Launch) -> Launch:
        compute()

        def launch() -> None:
            self.num_launched += 1
            compute()

        return launch


class NoRecorder:
    def record(self, compute: Launch) -> Launch:
        compute()
        raise RuntimeError("an operation that waits for the device cannot be recorded")


@dataclass(frozen=True)
class FromTensors:
    """Attends by what the tensors hold when it attends, and by nothing said before."""

    attention: AttentionBackend

    def over(self, inputs: StepInputs) -> AttentionStep:
        return FromTensorsStep(self.attention, inputs)


@dataclass(frozen=True)
class FromTensorsStep:
    attention: AttentionBackend
    inputs: StepInputs

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        starts = self.inputs.query_starts.tolist()
        count = starts[-1]
        assert starts == [min(place, count) for place in range(len(starts))]
        assert all((slots[count:] < 0).all() for slots in self.inputs.slots)
        positions = self.inputs.context_lens[:count].long() - 1
        batch = Batch(
            input_ids=positions,
            positions=positions,
            slots=tuple(slots[:count] for slots in self.inputs.slots),
            block_tables=tuple(table[:count] for table in self.inputs.block_tables),
            query_starts=tuple(starts[: count + 1]),
            context_lens=tuple(self.inputs.context_lens[:count].tolist()),
            logits_indices=positions,
        )
        out = query.new_zeros(len(query), query.shape[1], layer.v_head_size)
        if count:
            step = self.attention.begin(batch)
            out[:count] = step.attend(layer, query[:count], key[:count], value[:count], sinks)
        return out


def recorded(
    loaded: LoadedModel, paging: Paging, recorder: Recorder | NoRecorder
) -> tuple[Model, list[int]]:
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    limits = DecodeLimits(MAX_SEQS, MAX_LEN, -(-MAX_LEN // BLOCK_SIZE), len(paging.tables))
    said: list[int] = []
    graphed = record_decode(
        model,
        FromTensors(model.backend),
        Buffers(limits, CPU),
        recorder,
        lambda done, _: said.append(done),
    )
    return graphed, said


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_as_recorded_say_what_generate_says(family: str, references: References) -> None:
    prompts = fidelity_prompts()[:MAX_SEQS]
    loaded = load(references.checkpoint(family), "float32")
    num_groups = len(loaded.facts.layout(KVOptions()).groups)
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE, num_groups=num_groups)
    recorder = Recorder()
    model, said = recorded(loaded, paging, recorder)
    assert isinstance(model, GraphedModel)
    assert said == list(range(len(ladder(MAX_SEQS)) + 1))
    texts = generate_greedy(model, paging, prompts, num_new=NUM_NEW, seed=3)
    assert texts == references.greedy_texts(family)[:MAX_SEQS]
    assert recorder.num_launched > NUM_NEW


def test_what_cannot_be_recorded_is_computed_as_ever(
    references: References, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = fidelity_prompts()[:2]
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE)
    loaded = load(references.checkpoint("llama"), "float32")
    model, _ = recorded(loaded, paging, NoRecorder())
    assert not isinstance(model, GraphedModel)
    assert "launched operation by operation" in caplog.text
    texts = generate_greedy(model, paging, prompts, num_new=4, seed=3)
    assert texts == [text[:4] for text in references.greedy_texts("llama")[:2]]


@given(st.integers(1, 2000))
def test_every_size_has_a_record_that_is_little_larger(max_num_seqs: int) -> None:
    sizes = ladder(max_num_seqs)
    assert sizes == sorted(set(sizes)) and sizes[-1] == max_num_seqs
    for count in range(1, max_num_seqs + 1):
        size = next(size for size in sizes if size >= count)
        assert size - count < (8 if count <= 256 else 16)
    assert len(sizes) <= 5 + 32 + max_num_seqs // 16
