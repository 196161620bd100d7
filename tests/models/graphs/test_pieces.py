"""Steps in pieces say what launched steps say, and keep the same keys and values, on a stand-in for
a GPU's graphs: padding is neither stored nor seen, whatever chunks a step is made of."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quire.cache.states.state_use import NULL_STATE
from quire.models.batch import Batch
from quire.models.config import KVOptions
from quire.models.experts.replacement import replace_experts
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.decode import record_decode
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.graphs.pieces import PieceBuffers, PieceLimits, record_pieces
from quire.models.graphs.recorded import NO_MEMORY, CaptureResult
from quire.models.hf import HFModel
from quire.models.loading.loaded_model import LoadedModel
from tests.long import long_but_for
from tests.models.driver import generate_greedy, load
from tests.models.families import VOCAB
from tests.models.graphs.device import Fault, StandInDevice, Torch, ignore_progress
from tests.models.graphs.test_graphed_model import FromTensors
from tests.models.logits_error import assert_same_logits
from tests.models.paging import Chunk, Paging
from tests.models.reference import BLOCK_SIZE, MAX_LEN, NUM_NEW, References, fidelity_prompts
from tests.profiles import cases

CPU = torch.device("cpu")


class Scale(NamedTuple):
    """The size of the steps of a family, and how many cases of them."""

    num_seqs: int
    max_len: int
    max_tokens: int
    num_cases: int


PLAIN = Scale(6, MAX_LEN, 80, 5)
EXPERTS = Scale(3, 9, 8, 1)
"""Experts are Triton's kernels, as on a GPU: an interpreter takes its time."""
STATES = Scale(3, 24, 40, 3)
FAMILIES = {
    **dict.fromkeys(("llama", "gemma2"), PLAIN),
    **dict.fromkeys(("gpt_oss", "llama4_text", "deepseek_v3"), EXPERTS),
    **dict.fromkeys(("qwen3_5_text", "mamba", "mamba2", "kimi_linear", "lfm2"), STATES),
}


class Subject(NamedTuple):
    """A model whose steps are launched, the same in pieces with keys and values of its own, and
    what was told when they were captured."""

    launched: HFModel
    model: HFModel | GraphedModel
    store: HFModel
    paging: Paging
    recorded: CaptureResult
    device: StandInDevice

    @property
    def stored(self) -> list[tuple[Tensor, Tensor]]:
        """Keys, values and states as both keep them."""
        stores = self.launched.store, self.store.store
        kept = [[*each.keys, *(v for v in each.values if v is not None)] for each in stores]
        found = [(one.elements, other.elements) for one, other in zip(*kept, strict=True)]
        states = self.launched.states, self.store.states
        rows = [each.rows[NULL_STATE + 1 :] for each in states if each is not None]
        return [*found, (rows[0], rows[1])] if rows else found


def in_pieces(loaded: LoadedModel, device: StandInDevice, scale: Scale = PLAIN) -> Subject:
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(scale.num_seqs, MAX_LEN, block_size=BLOCK_SIZE, tables=tables)
    launched, model = (
        loaded.attach(paging.num_blocks, BLOCK_SIZE, num_states=paging.num_states) for _ in range(2)
    )
    buffers = PieceBuffers(PieceLimits(scale.max_tokens, scale.num_seqs), CPU)
    found = record_pieces(model, buffers, device, ignore_progress)
    return Subject(launched, with_recorded(model, found), model, paging, found, device)


def loaded_family(family: str, references: References) -> LoadedModel:
    loaded = load(references.checkpoint(family), "float32")
    replace_experts(loaded.module)  # as on a GPU
    return loaded


def same_step(subject: Subject, batch: Batch, folder: Path) -> None:
    """Compute a step both ways, and see that logits, keys, values and states are the same."""
    found, expected = subject.model.forward(batch).clone(), subject.launched.forward(batch)
    assert found.shape == expected.shape
    if len(expected):
        assert_same_logits(found, expected, folder, MAX_LEN)
    for launched, replayed in subject.stored:
        written = ~launched.isnan()
        assert torch.equal(written, ~replayed.isnan())
        assert_same_logits(replayed[written], launched[written], folder, MAX_LEN)


def some_steps(seed: int, scale: Scale) -> list[list[Chunk]]:
    """Return steps of chunks of all lengths, single tokens among them, until all texts are done."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, scale.max_len) for _ in range(scale.num_seqs)]
    texts = [[rng.randrange(3, VOCAB) for _ in range(length)] for length in lengths]
    done: list[int] = [0] * scale.num_seqs
    steps = []
    while unfinished := [seq for seq, text in enumerate(texts) if done[seq] < len(text)]:
        chunks: list[Chunk] = []
        for seq in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            longest = rng.choice((1, 1, 7, scale.max_len))
            tokens = texts[seq][done[seq] : done[seq] + rng.randint(1, longest)]
            chunks.append((seq, done[seq], tokens))
            done[seq] += len(tokens)
        steps.append(chunks)
    return steps


IN_EVERY_RUN = ("llama", "gemma2", "deepseek_v3", "qwen3_5_text", "mamba", "mamba2")


@long_but_for(IN_EVERY_RUN, "family", FAMILIES)
def test_steps_in_pieces_say_and_keep_what_launched_steps_do(
    family: str, references: References
) -> None:
    folder, scale = references.checkpoint(family), FAMILIES[family]
    subject = in_pieces(loaded_family(family, references), StandInDevice(), scale)
    assert subject.recorded.why_not == ""

    @given(st.integers(0, 2**32))
    @cases(scale.num_cases)
    @torch.inference_mode()
    def steps_are_the_same(seed: int) -> None:
        for pair in subject.stored:
            for elements in pair:
                elements.fill_(torch.nan)
        rng = random.Random(seed)
        for chunks in some_steps(seed, scale):
            ends = _ends(chunks)
            rows = sorted(rng.sample(ends, rng.randint(0, len(ends))))
            same_step(subject, subject.paging.batch(chunks, rows=rows), folder)

    steps_are_the_same()
    assert subject.device.num_replays > 0


def test_texts_in_pieces_are_those_of_generate(references: References) -> None:
    prompts = fidelity_prompts()[: PLAIN.num_seqs]
    subject = in_pieces(load(references.checkpoint("llama"), "float32"), StandInDevice())
    texts = generate_greedy(subject.model, subject.paging, prompts, num_new=NUM_NEW, seed=3)
    assert texts == references.greedy_texts("llama")[: PLAIN.num_seqs]


def test_texts_are_the_same_where_decode_steps_are_captured_whole(references: References) -> None:
    prompts = fidelity_prompts()[: PLAIN.num_seqs]
    subject = in_pieces(load(references.checkpoint("llama"), "float32"), StandInDevice())
    model, device = subject.store, StandInDevice()
    limits = DecodeLimits(PLAIN.num_seqs, MAX_LEN, -(-MAX_LEN // BLOCK_SIZE), 1)
    backend, buffers = FromTensors(model.backend, device), Buffers(limits, CPU)
    decode = record_decode(model, backend, buffers, device, ignore_progress)
    both = with_recorded(model, decode, subject.recorded)
    texts = generate_greedy(both, subject.paging, prompts, num_new=NUM_NEW, seed=3)
    assert texts == references.greedy_texts("llama")[: PLAIN.num_seqs]
    assert device.num_replays > 0 and subject.device.num_replays > 0


def test_a_graph_ends_at_each_attention(references: References) -> None:
    loaded = load(references.checkpoint("llama"), "float32")
    subject = in_pieces(loaded, StandInDevice())
    num_pieces = loaded.facts.num_layers + 1
    assert subject.recorded[1:] == (80, 3, 3 * num_pieces, "")
    subject.model.forward(subject.paging.batch([(0, 0, range(3, 40))]))
    assert subject.device.num_replays == num_pieces


def _launches(subject: Subject, batch: Batch) -> bool:
    """Return whether a step is launched operation by operation."""
    before = subject.device.num_replays
    subject.model.forward(batch)
    return subject.device.num_replays == before


def test_steps_that_no_size_holds_are_launched(references: References) -> None:
    """A step of 32 tokens in pieces computes the logits of six."""
    subject = in_pieces(load(references.checkpoint("llama"), "float32"), StandInDevice())
    paging, tokens = subject.paging, range(3, 84)
    assert not _launches(subject, paging.batch([(0, 0, tokens[:80])]))
    assert _launches(subject, paging.batch([(0, 0, tokens)]))
    assert not _launches(subject, paging.batch([(0, 0, tokens[:9])], rows=range(6)))
    assert _launches(subject, paging.batch([(0, 0, tokens[:9])], rows=range(7)))


def test_a_step_whose_states_are_needed_is_launched(references: References) -> None:
    loaded = load(references.checkpoint("llama"), "float32")
    subject = in_pieces(loaded, StandInDevice())
    before = subject.device.num_replays
    batch = subject.paging.batch([(0, 0, [5, 6])])
    wanted = replace(batch, states_indices=batch.logits_indices - 1)
    _, states = subject.model.forward_with_states(wanted)
    assert states is not None and states.shape == (1, loaded.facts.hidden_size)
    assert subject.device.num_replays == before


def test_attention_that_fails_leaves_the_next_step_as_it_would_be(references: References) -> None:
    """A step for which attention has no memory is computed in parts, by the same graphs."""
    folder = references.checkpoint("llama")
    subject = in_pieces(load(folder, "float32"), StandInDevice())
    good = subject.paging.batch([(0, 0, range(3, 30))])
    bad = replace(good, slots=(good.slots[0] + 10**6,))
    with pytest.raises((RuntimeError, IndexError)):
        subject.model.forward(bad)
    found = subject.model.forward(good).clone()
    assert_same_logits(found, subject.launched.forward(good), folder, MAX_LEN)


@pytest.mark.parametrize("fault", [Fault.WAIT, Fault.UNSEEN_WAIT, Fault.BEGIN, Fault.END])
@pytest.mark.parametrize("version", Torch)
def test_what_cannot_be_captured_is_computed_as_ever(
    fault: Fault, version: Torch, references: References, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load(references.checkpoint("llama"), "float32")
    device = StandInDevice(version, fault, frozenset({1}))
    _after_norms(loaded, lambda out: device.launch(lambda: None))
    subject = in_pieces(loaded, device)
    assert isinstance(subject.model, HFModel) and subject.recorded.largest == 0
    assert subject.recorded.why_not in caplog.text
    assert "LlamaForCausalLM launches steps with prefill operation by operation" in caplog.text
    assert device.stream == "main" and device.random_state == "free" and device.tape is None
    assert all(pool.users == 0 and pool.is_dropped for pool in device.pools)
    device.free_cached()


def _after_norms(loaded: LoadedModel, act: Callable[[Tensor], object]) -> None:
    def hook(norm: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        act(output)

    for part in loaded.module.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.register_forward_hook(hook)


def test_a_model_that_asks_the_device_is_refused_before_any_capture(references: References) -> None:
    loaded, device = load(references.checkpoint("llama"), "float32"), StandInDevice()
    _after_norms(loaded, lambda out: out.sum().item())
    subject = in_pieces(loaded, device)
    assert isinstance(subject.model, HFModel) and "begin" not in device.log
    assert "item waits for the device, in " in subject.recorded.why_not


def test_without_memory_for_any_size_all_steps_are_launched(references: References) -> None:
    loaded = load(references.checkpoint("llama"), "float32")
    device = StandInDevice(Torch.NOTHING, Fault.GRAPH_MEMORY, frozenset(range(100)))
    subject = in_pieces(loaded, device)
    assert isinstance(subject.model, HFModel) and subject.recorded.why_not == NO_MEMORY


def test_no_memory_within_a_step_leaves_the_smaller_ones(references: References) -> None:
    loaded = load(references.checkpoint("llama"), "float32")
    device = StandInDevice(Torch.NOTHING, Fault.GRAPH_MEMORY, frozenset({1}))
    subject = in_pieces(loaded, device)
    assert subject.recorded.largest == 32
    assert not _launches(subject, subject.paging.batch([(0, 0, range(3, 35))]))
    assert _launches(subject, subject.paging.batch([(0, 0, range(3, 36))]))


def _ends(chunks: Sequence[Chunk]) -> list[int]:
    lengths = torch.tensor([len(tokens) for _, _, tokens in chunks])
    return [int(end) - 1 for end in lengths.cumsum(0)]
