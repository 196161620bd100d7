"""A step arrives at another rank as it was sent."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.ranks.step_tensors import header, num_bytes, packed_tensors, unpacked_batch
from quire.models.batch import Batch
from quire.models.recurrent.pieces import Pieces


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    num_tokens, num_groups = sum(counts), draw(st.integers(0, 3))
    width, num_logits = draw(st.integers(1, 5)), draw(st.integers(0, num_tokens))
    num_states = draw(st.none() | st.integers(0, num_tokens))
    num_pieces = draw(st.none() | st.integers(len(counts), num_tokens))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(0, 1 << 30, shape, generator=generator, dtype=dtype)

    def pieces(count: int) -> Pieces:
        sizes = (count + 1, count, count, len(counts) + 1)
        return Pieces(*(numbers(size, dtype=torch.int32) for size in sizes))

    return Batch(
        input_ids=numbers(num_tokens),
        positions=numbers(num_tokens),
        slots=tuple(numbers(num_tokens) for _ in range(num_groups)),
        block_tables=tuple(
            numbers(len(counts), width, dtype=torch.int32) for _ in range(num_groups)
        ),
        query_starts=(0, *(sum(counts[: end + 1]) for end in range(len(counts)))),
        context_lens=tuple(counts),
        logits_indices=numbers(num_logits),
        states_indices=None if num_states is None else numbers(num_states),
        pieces=None if num_pieces is None else pieces(num_pieces),
    )


@given(batches())
def test_a_batch_is_the_same_when_it_is_unpacked(batch: Batch) -> None:
    packed = packed_tensors(batch)
    step = header(batch, packed.numpy().tobytes())
    assert num_bytes(step) == len(packed)
    assert step.tensors is not None
    arrived = unpacked_batch(step, torch.frombuffer(bytearray(step.tensors), dtype=torch.uint8))
    for field in fields(Batch):
        sent, got = getattr(batch, field.name), getattr(arrived, field.name)
        assert type(sent) is type(got)
        if isinstance(sent, torch.Tensor):
            sent, got = (sent,), (got,)
        if isinstance(sent, Pieces):
            sent, got = (
                tuple(getattr(each, part.name) for part in fields(Pieces)) for each in (sent, got)
            )
        if isinstance(sent, tuple) and sent and isinstance(sent[0], torch.Tensor):
            assert all(a.dtype == b.dtype and a.equal(b) for a, b in zip(sent, got, strict=True))
        else:
            assert sent == got


def test_a_step_of_an_encoder_is_refused() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    batch = Batch(one, one, (), (), (0, 1), (1,), one, token_types=one)
    with pytest.raises(ValueError, match="token types"):
        packed_tensors(batch)
