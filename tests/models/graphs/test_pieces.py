"""Steps in pieces say what launched steps say, and keep the same keys and values, on a stand-in for
a GPU's graphs: padding is neither stored nor seen, whatever chunks a step is made of."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.batch import Batch
from quire.models.config import KVOptions
from quire.models.experts.replacement import replace_experts
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.graphs.pieces import PieceBuffers, PieceLimits, record_pieces
from quire.models.graphs.recorded import NO_MEMORY, Recorded
from quire.models.hf import HFModel
from quire.models.loading.loader import LoadedModel
from tests.models.driver import generate_greedy, load
from tests.models.families import VOCAB
from tests.models.graphs.device import Fault, StandInDevice, Torch, ignore_progress
from tests.models.logits_error import assert_same_logits
from tests.models.paging import Chunk, Paging
from tests.models.reference import BLOCK_SIZE, MAX_LEN, NUM_NEW, References, fidelity_prompts
from tests.profiles import cases

CPU = torch.device("cpu")
FAMILIES = ("llama", "gemma2", "gpt_oss", "llama4_text", "deepseek_v3")
MAX_SEQS, MAX_TOKENS = 6, 80


class Subject(NamedTuple):
    """A model whose steps are launched, the same in pieces with keys and values of its own, and
    what was told when they were captured."""

    launched: HFModel
    model: HFModel | GraphedModel
    store: HFModel
    paging: Paging
    recorded: Recorded
    device: StandInDevice

    @property
    def stored(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values as both keep them."""
        stores = self.launched.store, self.store.store
        kept = [[*each.keys, *(v for v in each.values if v is not None)] for each in stores]
        return [(one.elements, other.elements) for one, other in zip(*kept, strict=True)]


def in_pieces(
    loaded: LoadedModel, device: StandInDevice, num_seqs: int = MAX_SEQS, max_len: int = MAX_LEN
) -> Subject:
    num_groups = len(loaded.facts.layout(KVOptions()).groups)
    paging = Paging(num_seqs, max_len, block_size=BLOCK_SIZE, num_groups=num_groups)
    launched = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    buffers = PieceBuffers(PieceLimits(MAX_TOKENS, num_seqs), CPU)
    found = record_pieces(model, buffers, device, ignore_progress)
    return Subject(launched, with_recorded(model, found), model, paging, found, device)


def loaded_family(family: str, references: References) -> LoadedModel:
    loaded = load(references.checkpoint(family), "float32")
    replace_experts(loaded.module)  # as on a GPU: transformers' own ask which experts are hit
    return loaded


def same_step(subject: Subject, batch: Batch, folder: Path) -> None:
    """Compute a step both ways, and see that logits, keys and values are the same."""
    found, expected = subject.model.forward(batch).clone(), subject.launched.forward(batch)
    assert found.shape == expected.shape
    if len(expected):
        assert_same_logits(found, expected, folder, MAX_LEN)
    for launched, replayed in subject.stored:
        written = ~launched.isnan()
        assert torch.equal(written, ~replayed.isnan())
        assert_same_logits(replayed[written], launched[written], folder, MAX_LEN)


def some_steps(seed: int, num_seqs: int) -> list[list[Chunk]]:
    """Return steps of chunks of all lengths, single tokens among them, until all texts are done."""
    rng = random.Random(seed)
    texts = [
        [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, MAX_LEN))] for _ in range(num_seqs)
    ]
    done, steps = [0] * num_seqs, []
    while unfinished := [seq for seq, text in enumerate(texts) if done[seq] < len(text)]:
        chunks: list[Chunk] = []
        for seq in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            longest = rng.choice((1, 1, 7, MAX_LEN))
            tokens = texts[seq][done[seq] : done[seq] + rng.randint(1, longest)]
            chunks.append((seq, done[seq], tokens))
            done[seq] += len(tokens)
        steps.append(chunks)
    return steps


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_in_pieces_say_and_keep_what_launched_steps_do(
    family: str, references: References
) -> None:
    folder = references.checkpoint(family)
    subject = in_pieces(loaded_family(family, references), StandInDevice())
    assert subject.recorded.why_not == ""

    @given(st.integers(0, 2**32))
    @cases(5)
    @torch.inference_mode()
    def steps_are_the_same(seed: int) -> None:
        for pair in subject.stored:
            for elements in pair:
                elements.fill_(torch.nan)
        rng = random.Random(seed)
        for chunks in some_steps(seed, MAX_SEQS):
            ends = _ends(chunks)
            rows = sorted(rng.sample(ends, rng.randint(0, len(ends))))
            same_step(subject, subject.paging.batch(chunks, rows=rows), folder)

    steps_are_the_same()
    assert subject.device.num_replays > 0


def _ends(chunks: Sequence[Chunk]) -> list[int]:
    lengths = torch.tensor([len(tokens) for _, _, tokens in chunks])
    return [int(end) - 1 for end in lengths.cumsum(0)]
