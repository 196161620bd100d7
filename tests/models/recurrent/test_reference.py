"""States and outputs are the same to the bit however sequences are cut, and right."""

import random
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.recurrent.reference.kernels import ReferenceKernels
from tests.models.recurrent.cuts import Inputs, Trace, is_same, make_pieces, run_alone, run_cut
from tests.models.recurrent.operations import SUBJECTS, Subject
from tests.models.recurrent.random_operations import delta_net

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNELS = ReferenceKernels()


def drawn(subject: Subject, lengths: list[int], seed: int, dtype: torch.dtype) -> list[Inputs]:
    generator = torch.Generator().manual_seed(seed)
    return [subject.draw(length, dtype, generator) for length in lengths]


@pytest.mark.parametrize("name", SUBJECTS)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(DTYPES),
)
def test_cuts_and_company_change_no_bit(
    name: str, lengths: list[int], seed: int, dtype: torch.dtype
) -> None:
    subject = SUBJECTS[name]
    operation = partial(subject.apply, KERNELS)
    sequences = drawn(subject, lengths, seed, dtype)
    cut = run_cut(operation, sequences, subject.state_shape, random.Random(seed))
    for found, inputs in zip(cut, sequences, strict=True):
        assert is_same(found, run_alone(operation, inputs, subject.state_shape))


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(DTYPES),
    is_wide=st.booleans(),
)
def test_cuts_and_company_change_no_bit_of_a_gated_delta_net(
    lengths: list[int], seed: int, dtype: torch.dtype, is_wide: bool
) -> None:
    net = delta_net(2, 6, 5, 7, width=3, is_wide=is_wide)
    generator = torch.Generator().manual_seed(seed)
    operation = partial(net.apply, KERNELS)
    sequences = [net.draw(length, dtype, generator) for length in lengths]
    cut = run_cut(operation, sequences, net.state_shape, random.Random(seed))
    for found, inputs in zip(cut, sequences, strict=True):
        assert is_same(found, run_alone(operation, inputs, net.state_shape))


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_are_those_of_the_formula(name: str, dtype: torch.dtype) -> None:
    subject = SUBJECTS[name]
    (inputs,) = drawn(subject, [20], 5, dtype)
    states = torch.zeros(2, *subject.state_shape)
    out = subject.apply(KERNELS, inputs, states, make_pieces([[(20, 0, 1)]]))
    expected, state = subject.expected([each.double().numpy() for each in inputs])
    assert out.dtype == dtype
    close = partial(torch.testing.assert_close, rtol=2e-2, atol=4e-2)
    if dtype == torch.float32:
        close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(out, torch.from_numpy(expected).to(dtype))
    close(states[1], torch.from_numpy(state).float())


def test_a_state_that_is_one_token_late_is_seen() -> None:
    subject = SUBJECTS["delta rule"]
    operation = partial(subject.apply, KERNELS)
    (inputs,) = drawn(subject, [9], 2, torch.float32)
    whole = run_alone(operation, inputs, subject.state_shape)
    late = Trace(whole.outputs, {4: whole.states[5]})
    assert not is_same(late, whole)


def test_a_state_that_is_rounded_is_seen() -> None:
    subject = SUBJECTS["delta rule"]
    (inputs,) = drawn(subject, [9], 2, torch.float32)

    def rounded(rows: Inputs, states: torch.Tensor, pieces: object) -> torch.Tensor:
        out = subject.apply(KERNELS, rows, states, pieces)  # type: ignore[arg-type]
        states.copy_(states.bfloat16().float())
        return out

    exact = run_alone(partial(subject.apply, KERNELS), inputs, subject.state_shape)
    assert not is_same(run_alone(rounded, inputs, subject.state_shape), exact)
