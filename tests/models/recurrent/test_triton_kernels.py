"""Triton's kernels of recurrent layers, in its interpreter: the same to the bit however sequences
are cut and in any company, near their twin, and nothing outside of their states. A GPU is looked
at by the check `recurrent-layers` of the acceptance."""

import random
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.cache.spec import StateSpec
from quire.models.config import AttentionBackendName, KVOptions
from quire.models.recurrent.choice import choose_recurrent_kernels
from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.kernels import ReferenceKernels
from quire.models.recurrent.triton.support import why_not_recurrent
from tests.models.recurrent.cuts import Inputs, is_same, make_pieces, run_alone, run_cut
from tests.models.recurrent.operations import SUBJECTS
from tests.models.recurrent.random_operations import (
    RandomOperation,
    convolution,
    delta_net,
    delta_rule,
    selective_scan,
    state_space,
)
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.recurrent.triton.kernels import TritonRecurrentKernels
from tests.engine.startup.jit_keys import launched_keys

KERNELS, REFERENCE = TritonRecurrentKernels(), ReferenceKernels()
DTYPES = (torch.float32, torch.float16)
"""The interpreter lacks bfloat16."""
HALF_ERROR = 2.0**-10
"""One rounding of a result to float16, on either side."""
CPU = torch.device("cpu")
SIZES = st.sampled_from((1, 3, 8, 20))
NUM_CASES = 25
"""An interpreter takes its time."""


@st.composite
def operations(draw: st.DrawFn) -> RandomOperation:
    """Operations of few heads and small sizes, some of them of more than one tile."""
    name, flag = (
        draw(st.sampled_from(("conv", "rule", "net", "space", "scan"))),
        draw(st.booleans()),
    )
    shared, first, second = draw(st.integers(1, 2)), draw(SIZES), draw(SIZES)
    heads = shared * draw(st.integers(1, 2))
    if name == "conv":
        width, channels = draw(st.integers(2, 6)), draw(st.sampled_from((1, 20, 140)))
        return convolution(channels, width, has_bias=draw(st.booleans()), is_activated=flag)
    if name == "rule":
        return delta_rule(shared, heads, first, second, by_channel=flag)
    if name == "net":
        return delta_net(shared, heads, first, second, width=draw(st.integers(2, 5)), is_wide=flag)
    if name == "space":
        return state_space(shared, heads, first, second, has_skip=flag)
    return selective_scan(draw(st.sampled_from((1, 20, 70))), first, has_skip=flag)


WIDE = {
    "rule": delta_rule(1, 1, 130, 17, by_channel=False),
    "space": state_space(1, 1, 9, 200, has_skip=True),
    "scan": selective_scan(40, 16, has_skip=False),
}
"""Several slices of a head."""


def drawn(
    operation: RandomOperation, lengths: list[int], seed: int, dtype: torch.dtype
) -> list[Inputs]:
    generator = torch.Generator().manual_seed(seed)
    return [operation.draw(length, dtype, generator) for length in lengths]


def spread(inputs: Inputs) -> Inputs:
    """Return the same rows with others between them in memory."""
    return tuple(torch.stack([each, torch.full_like(each, torch.nan)], 1)[:, 0] for each in inputs)


def assert_cuts_change_no_bit(
    operation: RandomOperation, lengths: list[int], seed: int, dtype: torch.dtype
) -> None:
    sequences = drawn(operation, lengths, seed, dtype)
    apply = partial(operation.apply, KERNELS)
    cut = run_cut(apply, sequences, operation.state_shape, random.Random(seed))
    for found, inputs in zip(cut, sequences, strict=True):
        assert is_same(found, run_alone(apply, inputs, operation.state_shape))


@given(
    operation=operations(),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(DTYPES),
)
@cases(NUM_CASES)
def test_cuts_and_company_change_no_bit(
    operation: RandomOperation, lengths: list[int], seed: int, dtype: torch.dtype
) -> None:
    assert_cuts_change_no_bit(operation, lengths, seed, dtype)


@pytest.mark.parametrize("name", WIDE)
def test_cuts_and_company_change_no_bit_of_several_slices(name: str) -> None:
    assert_cuts_change_no_bit(WIDE[name], [5, 3], 1, torch.float32)


def run_whole(
    operation: RandomOperation, kernels: RecurrentKernels, inputs: Inputs
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last state of a sequence in one piece."""
    states = torch.zeros(2, *operation.state_shape)
    pieces = make_pieces([[(len(inputs[0]), 0, 1)]])
    return operation.apply(kernels, inputs, states, pieces), states[1]


def assert_near_the_twin(
    operation: RandomOperation, length: int, seed: int, dtype: torch.dtype
) -> None:
    (inputs,) = drawn(operation, [length], seed, dtype)
    out, state = run_whole(operation, KERNELS, spread(inputs))
    expected, expected_state = run_whole(operation, REFERENCE, inputs)
    assert out.dtype == dtype
    error = operation.relative_error(length, dtype)
    size = max(1.0, *(float(each.abs().max()) for each in (*inputs, expected_state, expected)))
    torch.testing.assert_close(state, expected_state, rtol=0, atol=error * size**2)
    error += 0 if dtype == torch.float32 else HALF_ERROR
    torch.testing.assert_close(out.float(), expected.float(), rtol=0, atol=error * size**2)


@given(
    operation=operations(),
    length=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(DTYPES),
)
@cases(NUM_CASES)
def test_results_are_near_those_of_the_twin(
    operation: RandomOperation, length: int, seed: int, dtype: torch.dtype
) -> None:
    assert_near_the_twin(operation, length, seed, dtype)


@pytest.mark.parametrize("name", WIDE)
def test_results_of_several_slices_are_near_those_of_the_twin(name: str) -> None:
    assert_near_the_twin(WIDE[name], 4, 2, torch.float32)


def test_a_convolution_of_several_tiles_of_tokens_is_near_its_twin() -> None:
    operation = convolution(40, 4, has_bias=True, is_activated=True)
    assert_near_the_twin(operation, 70, 3, torch.float16)
    assert_cuts_change_no_bit(operation, [40, 35], 4, torch.float32)


@pytest.mark.parametrize("name", SUBJECTS)
def test_outputs_are_those_of_the_formula(name: str) -> None:
    subject = SUBJECTS[name]
    inputs = subject.draw(9, torch.float32, torch.Generator().manual_seed(5))
    states = torch.zeros(2, *subject.state_shape)
    out = subject.apply(KERNELS, inputs, states, make_pieces([[(9, 0, 1)]]))
    expected, state = subject.expected([each.double().numpy() for each in inputs])
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(out, torch.from_numpy(expected).float())
    close(states[1], torch.from_numpy(state).float())


@pytest.mark.parametrize("name", SUBJECTS)
def test_padding_leaves_no_state(name: str) -> None:
    """As a captured step has it: a piece of padding writes the null state, a sequence without
    pieces nothing."""
    subject = SUBJECTS[name]
    inputs = subject.draw(4, torch.float32, torch.Generator().manual_seed(1))
    before = torch.randn(5, *subject.state_shape)
    before[0] = 0
    own, padded = before.clone(), before.clone()
    out = subject.apply(
        KERNELS, tuple(each[:2] for each in inputs), own, make_pieces([[(1, 2, 3)], [(1, 4, 4)]])
    )
    wide = make_pieces([[(1, 2, 3)], [(1, 4, 4)], [(1, 0, 0)], [(1, 0, 0)], []])
    found = subject.apply(KERNELS, inputs, padded, wide)
    assert torch.equal(found[:2], out) and found.isfinite().all()
    assert torch.equal(padded, own)
    assert not padded[0].any() and torch.equal(padded[[1, 2]], before[[1, 2]])


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_state_is_taken_over_by_the_next_piece_in_the_same_place(name: str) -> None:
    """Pieces shorter than a tail, each in the place of the one before it."""
    subject = SUBJECTS[name]
    inputs = subject.draw(4, torch.float32, torch.Generator().manual_seed(2))
    apply = partial(subject.apply, KERNELS)
    states = torch.randn(3, *subject.state_shape)
    pieces, others = ([[(1, 1, each), (1, each, each), (2, each, each)]] for each in (1, 2))
    for_others = states.clone()
    out = apply(inputs, states, make_pieces(pieces))
    assert torch.equal(out, apply(inputs, for_others, make_pieces(others)))
    assert torch.equal(states[1], for_others[2])


def test_a_step_without_tokens_is_nothing() -> None:
    subject = SUBJECTS["delta rule"]
    inputs = subject.draw(0, torch.float32, torch.Generator())
    none = torch.zeros(0, dtype=torch.int32)
    start = torch.zeros(1, dtype=torch.int32)
    states = torch.zeros(2, *subject.state_shape)
    out = subject.apply(KERNELS, inputs, states, Pieces(start, none, none, start))
    assert len(out) == 0 and not states.any()


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_layer_has_one_program_for_all_steps(name: str) -> None:
    """Another program might sum in another order. Of the convolution, whose sums are in the order
    of the taps, there may be two."""
    subject = SUBJECTS[name]
    store = torch.zeros(9, 1 + torch.Size(subject.state_shape).numel())
    states = torch.unflatten(store[:, 1:], 1, subject.state_shape)
    with launched_keys() as keys:
        for lengths in ([1], [5], [16, 1], [1, 1, 1], [3] * 4):
            inputs = subject.draw(sum(lengths), torch.float32, torch.Generator())
            cuts = [[(length, 0, 1 + i)] for i, length in enumerate(lengths)]
            pieces = make_pieces(cuts)
            shifted = Pieces(*(torch.cat([each[:1], each])[1:] for each in _parts(pieces)))
            subject.apply(KERNELS, spread(inputs), states, shifted)
            subject.apply(KERNELS, inputs, states, pieces)
    assert len(keys) == (2 if "convolution" in name else 1)


def _parts(pieces: Pieces) -> tuple[Tensor, ...]:
    return pieces.starts, pieces.reads, pieces.writes, pieces.sequences


TAIL = (64, 3)


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ((TAIL, (2, 128, 256)), None),
        ((TAIL,), None),
        ((TAIL, (4096, 16)), None),
        (((64, 9), (2, 8, 8)), "a convolution keeps 9 rows, they take 1 to 8"),
        (((64, 0),), "a convolution keeps 0 rows, they take 1 to 8"),
        ((TAIL, (2, 257, 8)), "a state has 257 numbers in a row or column, they take 256"),
        ((TAIL, (512, 300)), "a state has 300 numbers in a row or column, they take 256"),
    ],
)
def test_states_that_do_not_fit_are_told(
    shapes: tuple[tuple[int, ...], ...], why: str | None
) -> None:
    states = [StateSpec((TAIL,)), StateSpec(shapes)]
    assert why_not_recurrent(CPU, torch.float16, states) == why


def test_states_that_do_not_fit_are_computed_by_torch(caplog: pytest.LogCaptureFixture) -> None:
    """On a GPU, for which a CPU stands in whose attention is asked to be Triton's."""
    options = KVOptions(attention=AttentionBackendName.TRITON)
    for tail, kind in ((3, TritonRecurrentKernels), (11, ReferenceKernels), (11, ReferenceKernels)):
        state = StateSpec(((64, tail), (2, 8, 8)))
        assert isinstance(choose_recurrent_kernels(CPU, torch.float16, [state], options), kind)
    (said,) = caplog.messages
    assert said.endswith("and not Triton: a convolution keeps 11 rows, they take 1 to 8")


def test_a_cpu_has_other_kernels() -> None:
    state, options = StateSpec(((64, 3), (2, 8, 8))), KVOptions()
    for dtype in (torch.float32, torch.float16):
        assert not choose_recurrent_kernels(CPU, dtype, [state], options).is_replayable


def test_a_dtype_without_kernels_is_told() -> None:
    why = why_not_recurrent(CPU, torch.float64, [])
    assert why == "they compute in float32, float16 and bfloat16, not in torch.float64"
