"""The C++ kernels of recurrent layers: the same to the bit however sequences are cut, in any
company and on any number of threads; near their twin; and nothing outside of their memory."""

import random
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.library import ISAS
from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.native import NativeRecurrentKernels
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.kernels import ReferenceKernels
from tests.instructions import library_of
from tests.models.recurrent.cuts import Inputs, is_same, make_pieces, run_alone, run_cut
from tests.models.recurrent.operations import SUBJECTS
from tests.models.recurrent.random_operations import OF_MODELS, RandomOperation, operations

DTYPES = (torch.float32, torch.bfloat16)
BF16_ERROR = 2.0**-8
"""One rounding of a result to bfloat16, on either side."""
REFERENCE = ReferenceKernels()


@pytest.fixture(scope="module", params=ISAS)
def kernels(request: pytest.FixtureRequest) -> NativeRecurrentKernels:
    return NativeRecurrentKernels(library_of(request.param))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(
    operation: RandomOperation, lengths: list[int], seed: int, dtype: torch.dtype
) -> list[Inputs]:
    generator = torch.Generator().manual_seed(seed)
    return [operation.draw(length, dtype, generator) for length in lengths]


def spread(inputs: Inputs) -> Inputs:
    """Return the same rows with others between them in memory."""
    return tuple(torch.stack([each, torch.full_like(each, torch.nan)], 1)[:, 0] for each in inputs)


def run_whole(
    operation: RandomOperation, kernels: RecurrentKernels, inputs: Inputs
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last state of a sequence in one piece."""
    states = torch.zeros(2, *operation.state_shape)
    pieces = make_pieces([[(len(inputs[0]), 0, 1)]])
    return operation.apply(kernels, inputs, states, pieces), states[1]


@given(
    operation=operations(),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(DTYPES),
    threads=st.integers(1, 3),
)
def test_cuts_company_and_threads_change_no_bit(
    kernels: NativeRecurrentKernels,
    operation: RandomOperation,
    lengths: list[int],
    seed: int,
    dtype: torch.dtype,
    threads: int,
) -> None:
    sequences = drawn(operation, lengths, seed, dtype)
    apply = partial(operation.apply, kernels)
    torch.set_num_threads(1)
    alone = [run_alone(apply, inputs, operation.state_shape) for inputs in sequences]
    torch.set_num_threads(threads)
    cut = run_cut(apply, sequences, operation.state_shape, random.Random(seed))
    for found, expected in zip(cut, alone, strict=True):
        assert is_same(found, expected)


@given(
    operation=operations(),
    length=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(DTYPES),
)
def test_results_are_near_those_of_the_twin(
    kernels: NativeRecurrentKernels,
    operation: RandomOperation,
    length: int,
    seed: int,
    dtype: torch.dtype,
) -> None:
    (inputs,) = drawn(operation, [length], seed, dtype)
    out, state = run_whole(operation, kernels, spread(inputs))
    expected, expected_state = run_whole(operation, REFERENCE, inputs)
    assert out.dtype == dtype
    error = operation.relative_error(length, dtype)
    size = max(1.0, *(float(each.abs().max()) for each in (*inputs, expected_state, expected)))
    torch.testing.assert_close(state, expected_state, rtol=0, atol=error * size**2)
    error += 0 if dtype == torch.float32 else BF16_ERROR
    torch.testing.assert_close(out.float(), expected.float(), rtol=0, atol=error * size**2)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_are_those_of_the_formula(
    kernels: NativeRecurrentKernels, name: str, dtype: torch.dtype
) -> None:
    subject = SUBJECTS[name]
    inputs = subject.draw(20, dtype, torch.Generator().manual_seed(5))
    states = torch.zeros(2, *subject.state_shape)
    out = subject.apply(kernels, inputs, states, make_pieces([[(20, 0, 1)]]))
    expected, state = subject.expected([each.double().numpy() for each in inputs])
    close = partial(torch.testing.assert_close, rtol=2e-2, atol=4e-2)
    if dtype == torch.float32:
        close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(out, torch.from_numpy(expected).to(dtype))
    close(states[1], torch.from_numpy(state).float())


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("name", OF_MODELS)
def test_work_is_shared_out_among_threads(
    kernels: NativeRecurrentKernels, name: str, threads: int
) -> None:
    operation = OF_MODELS[name]
    (inputs,) = drawn(operation, [20], 0, torch.bfloat16)
    pieces, found = make_pieces([[(7, 0, 1), (12, 1, 2)], [(1, 0, 3)]]), []
    for each in (1, threads):
        torch.set_num_threads(each)
        states = torch.zeros(4, *operation.state_shape)
        found.append((operation.apply(kernels, inputs, states, pieces), states))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_numbers_that_fade_away_are_the_same_on_all_threads(
    kernels: NativeRecurrentKernels,
) -> None:
    """Denormal numbers count as zero, whatever the calling thread does with them."""
    heads, size = 8, 128
    key = torch.ones(2, heads, size)
    decay, beta = torch.full((2, heads), -80.0), torch.zeros(2, heads)
    pieces, found = make_pieces([[(2, 1, 1)]]), []
    for flushes in (False, True):
        states = torch.full((2, heads, size, size), 1e-3)
        torch.set_flush_denormal(flushes)
        torch.set_num_threads(2)
        kernels.gated_delta_rule(key, key, key, decay, beta, states, pieces)
        found.append(states[1])
    torch.set_flush_denormal(False)
    assert torch.equal(found[0], found[1])


GOOD = [[(3, 0, 1), (2, 1, 2)], [(1, 0, 3)]]


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("starts", [0, 3, 5, 7]),
        ("starts", [1, 3, 5, 6]),
        ("starts", [0, 5, 3, 6]),
        ("reads", [0, 1, -1]),
        ("reads", [0, 1, 4]),
        ("writes", [1, 2, 0]),
        ("writes", [1, 4, 3]),
        ("sequences", [0, 2, 4]),
        ("sequences", [1, 2, 3]),
    ],
)
def test_pieces_outside_of_rows_or_states_are_refused(
    kernels: NativeRecurrentKernels, name: str, part: str, values: list[int]
) -> None:
    subject = SUBJECTS[name]
    inputs = subject.draw(6, torch.float32, torch.Generator().manual_seed(1))
    states = torch.zeros(4, *subject.state_shape)
    good = make_pieces(GOOD)
    fields = {each: getattr(good, each) for each in ("starts", "reads", "writes", "sequences")}
    bad = Pieces(**fields | {part: torch.tensor(values, dtype=torch.int32)})
    with pytest.raises(IndexError, match="pieces lie outside of the rows"):
        subject.apply(kernels, inputs, states, bad)
    assert not states.any()
    subject.apply(kernels, inputs, states, good)
    assert states[1:].any()


@pytest.mark.parametrize("name", SUBJECTS)
def test_tensors_of_other_shapes_and_dtypes_are_refused(
    kernels: NativeRecurrentKernels, name: str
) -> None:
    subject = SUBJECTS[name]
    inputs = subject.draw(6, torch.float32, torch.Generator().manual_seed(1))
    pieces = make_pieces(GOOD)
    with pytest.raises(ValueError, match="states: torch.float32"):
        subject.apply(kernels, inputs, torch.zeros(4, 1, *subject.state_shape), pieces)
    with pytest.raises(ValueError, match="states: torch.bfloat16"):
        states = torch.zeros(4, *subject.state_shape)
        subject.apply(kernels, inputs, states.bfloat16(), pieces)
    with pytest.raises(ValueError, match="float16"):
        halves = subject.draw(6, torch.float16, torch.Generator().manual_seed(1))
        subject.apply(kernels, halves, torch.zeros(4, *subject.state_shape), pieces)
    wide = Pieces(pieces.starts.long(), pieces.reads, pieces.writes, pieces.sequences)
    with pytest.raises(ValueError, match="starts: torch.int64"):
        subject.apply(kernels, inputs, torch.zeros(4, *subject.state_shape), wide)


def test_weights_of_the_model_are_checked(kernels: NativeRecurrentKernels) -> None:
    rows, states = torch.zeros(6, 5), torch.zeros(4, 5, 2)
    pieces = make_pieces(GOOD)
    with pytest.raises(ValueError, match="bias: torch.float32 "):
        kernels.causal_conv(
            rows, torch.zeros(5, 3), torch.zeros(4), states, pieces, is_activated=False
        )
    with pytest.raises(ValueError, match=r"4 value heads cannot share 3 key heads"):
        heads, values = torch.zeros(6, 3, 2), torch.zeros(6, 4, 2)
        of_heads, states = torch.zeros(6, 4), torch.zeros(4, 4, 2, 2)
        kernels.gated_delta_rule(heads, heads, values, of_heads, of_heads, states, pieces)
