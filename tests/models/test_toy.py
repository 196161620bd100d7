"""The toy model agrees with its oracle through any paging, and any damage to the store shows."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.config import KVSize
from quire.models.toy import ToyLayers, ToyModel, toy_layout, toy_logits
from tests.models.paging import Paging
from tests.models.toy_stacks import layer_stacks

VOCAB = 97


def run_in_chunks(
    model: ToyModel, paging: Paging, prompts: list[list[int]], rng: random.Random
) -> list[Tensor]:
    """Feed prompts in random chunks, mixed in steps; the logits after every prompt's last token."""
    done = [0] * len(prompts)
    last = [torch.empty(0)] * len(prompts)
    while any(n < len(p) for n, p in zip(done, prompts, strict=True)):
        waiting = [i for i, p in enumerate(prompts) if done[i] < len(p)]
        picked = rng.sample(waiting, rng.randint(1, len(waiting)))
        ends = [rng.randint(done[i] + 1, len(prompts[i])) for i in picked]
        spans = list(zip(picked, ends, strict=True))
        chunks = [(i, done[i], prompts[i][done[i] : end]) for i, end in spans]
        logits = model.forward(paging.batch(chunks))
        for row, (i, end) in zip(logits, spans, strict=True):
            done[i], last[i] = end, row
    return last


token_lists = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)


@given(
    st.lists(token_lists, min_size=1, max_size=5),
    st.integers(1, 9),
    st.integers(0, 2**32),
    layer_stacks(),
    st.booleans(),
)
def test_any_paging_and_chunking_gives_the_oracles_logits(
    prompts: list[list[int]],
    block_size: int,
    seed: int,
    layers: ToyLayers,
    hybrid: bool,
) -> None:
    tables = toy_layout(layers, hybrid=hybrid).tables
    paging = Paging(len(prompts), 40, block_size=block_size, seed=seed, tables=tables)
    model = ToyModel(VOCAB, KVSize(paging.num_blocks, block_size), layers, hybrid=hybrid)
    last = run_in_chunks(model, paging, prompts, random.Random(seed))
    for prompt, logits in zip(prompts, last, strict=True):
        assert torch.equal(logits, toy_logits(prompt, VOCAB, layers))


def test_every_row_of_a_chunk_has_its_own_prefix() -> None:
    paging = Paging(2, 20, block_size=4)
    model = ToyModel(VOCAB, KVSize(paging.num_blocks, 4))
    a, b = list(range(10)), list(range(50, 57))
    model.forward(paging.batch([(1, 0, b[:3])], rows=[]))
    logits = model.forward(paging.batch([(0, 0, a), (1, 3, b[3:])], rows=[0, 4, 9, 10, 13]))
    expected = [a[:1], a[:5], a[:10], b[:4], b]
    assert torch.equal(logits, torch.stack([toy_logits(p, VOCAB) for p in expected]))


def test_no_wanted_rows_gives_no_logits() -> None:
    paging = Paging(1, 8, block_size=4)
    model = ToyModel(VOCAB, KVSize(paging.num_blocks, 4))
    logits = model.forward(paging.batch([(0, 0, [1, 2, 3])], rows=[]))
    assert logits.shape == (0, VOCAB) and logits.dtype == torch.float32


@pytest.mark.parametrize("damaged", range(11))
def test_overwriting_any_stored_value_changes_the_logits(damaged: int) -> None:
    paging = Paging(2, 12, block_size=4)
    model = ToyModel(VOCAB, KVSize(paging.num_blocks, 4))
    tokens = list(range(12))
    model.forward(paging.batch([(0, 0, tokens[:11])], rows=[]))
    slot = paging.slot(0, damaged)
    model.forward(paging.batch([(1, 0, [5])], rows=[], slots=[slot]))
    logits = model.forward(paging.batch([(0, 11, tokens[11:])]))
    assert not torch.equal(logits[0], toy_logits(tokens, VOCAB))


def test_a_prefix_of_other_tokens_is_seen_even_where_tokens_agree() -> None:
    """Blocks two and three hold equal tokens, but under another first block: a false prefix hit."""
    paging = Paging(2, 12, block_size=4)
    model = ToyModel(VOCAB, KVSize(paging.num_blocks, 4))
    shared = [9, 9, 9, 9]
    model.forward(paging.batch([(0, 0, [1, 2, 3, 4, *shared])], rows=[]))
    model.forward(paging.batch([(1, 0, [4, 3, 2, 1])], rows=[]))
    paging.tables[0][1][1] = paging.tables[0][0][1]
    logits = model.forward(paging.batch([(1, 8, [7])]))
    assert not torch.equal(logits[0], toy_logits([4, 3, 2, 1, *shared, 7], VOCAB))


def test_logits_have_a_winner_and_a_crowd() -> None:
    logits = torch.stack([toy_logits([i, i + 1], 512) for i in range(64)])
    assert len(set(logits.argmax(-1).tolist())) > 48
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    assert entropy.min() > 3.0 and entropy.max() < 6.0
