"""Captured decode steps of models with recurrent layers say what `generate` says, and padding
leaves all states as they were: by Triton's kernels, on a stand-in for a GPU's graphs."""

import pytest
import torch

from quire.models.config import AttentionBackendName, KVOptions
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.decode import ReplayableBackend, record_decode
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.hf import HFModel
from quire.models.loading.loaded_model import LoadedModel
from tests.long import long_but_for
from tests.models.driver import generate_greedy, load
from tests.models.graphs.device import StandInDevice, ignore_progress
from tests.models.paging import Paging
from tests.models.reference import BLOCK_SIZE, MAX_LEN, References, fidelity_prompts

pytest.importorskip("triton", reason="triton is not installed")

CPU = torch.device("cpu")
FAMILIES = ("qwen3_5_text", "mamba", "mamba2", "kimi_linear", "lfm2", "jamba")
IN_EVERY_RUN = ("qwen3_5_text", "mamba")
MAX_SEQS, NUM_NEW = 3, 3
"""The first step of two requests is padded to four."""


def attached(loaded: LoadedModel, paging: Paging) -> HFModel:
    options = KVOptions(attention=AttentionBackendName.TRITON)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE, options, num_states=paging.num_states)
    assert model.kernels is not None and model.kernels.is_replayable
    return model


@long_but_for(IN_EVERY_RUN, "family", FAMILIES)
def test_captured_steps_say_what_generate_says(family: str, references: References) -> None:
    loaded = load(references.checkpoint(family), "float32")
    tables = loaded.facts.layout(KVOptions()).tables
    prompts, device = fidelity_prompts()[:MAX_SEQS], StandInDevice()
    paging = Paging(MAX_SEQS, MAX_LEN, block_size=BLOCK_SIZE, tables=tables)
    model = attached(loaded, paging)
    assert isinstance(model.backend, ReplayableBackend) and model.states is not None
    limits = DecodeLimits(MAX_SEQS + 1, MAX_LEN, -(-MAX_LEN // BLOCK_SIZE), len(tables))
    buffers = Buffers(limits, CPU)
    found = record_decode(model, model.backend, buffers, device, ignore_progress)
    assert found.largest == MAX_SEQS + 1 and not found.why_not
    graphed = with_recorded(model, found)
    assert isinstance(graphed, GraphedModel)
    assert not model.states.rows.any(), "captures leave no state"
    texts = generate_greedy(graphed, paging, prompts, num_new=NUM_NEW, seed=3)
    assert texts == [text[:NUM_NEW] for text in references.greedy_texts(family)[:MAX_SEQS]]
    assert device.num_replays > 0
    before = model.states.rows.clone()
    batch = paging.batch([(seq, MAX_LEN - 2, [5]) for seq in range(MAX_SEQS)])
    graphed.forward(batch)
    own = [paging.states[seq][0] for seq in range(MAX_SEQS)]
    others = [index for index in range(paging.num_states) if index not in own]
    assert torch.equal(model.states.rows[others], before[others])
    assert not torch.equal(model.states.rows[own], before[own])
