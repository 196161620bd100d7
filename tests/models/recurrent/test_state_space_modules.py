"""Modules with Mamba, Mamba-2 and Kimi delta attention compute what transformers does, however
their sequences are cut."""

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.cache.states.state_use import NULL_STATE
from quire.models.config import UnsupportedModel
from tests.models.families import STATE_SPACES, Family
from tests.models.recurrent.cuts import is_same, make_pieces, run_alone, run_cut
from tests.models.recurrent.modules import ModuleSubject, recurrent_module, row_by_row

MAMBA, MAMBA_2 = STATE_SPACES["mamba"], STATE_SPACES["mamba2"]
LIMITS = {"time_step_limit": [0.5, 2.0]}
ALONE = {
    **STATE_SPACES,
    "mamba2, limited steps": MAMBA_2._replace(fields={**MAMBA_2.fields, **LIMITS}),
    "mamba, steps of a high rank": MAMBA._replace(fields={**MAMBA.fields, "time_step_rank": 40}),
}
FAMILIES = pytest.mark.parametrize("name", ALONE)


def random_rows(subject: ModuleSubject, num_rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, subject.hidden_size, generator=generator)


@FAMILIES
@pytest.mark.parametrize("length", [1, 2, 7, 90])
def test_a_whole_sequence_is_as_in_transformers(name: str, length: int) -> None:
    subject = recurrent_module(ALONE[name])
    rows = random_rows(subject, length, seed=length)
    with torch.inference_mode():
        expected = subject.part(rows[None])[0]
    pieces = make_pieces([[(length, NULL_STATE, 1)]])
    found = subject.compute((rows,), torch.zeros(2, *subject.state_shape), pieces)
    largest = float(expected.abs().max())
    assert largest > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * largest)


@FAMILIES
@settings(max_examples=10)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_cuts_and_company_change_no_bit(name: str, lengths: list[int], seed: int) -> None:
    subject = exact_module(name)
    sequences = [(random_rows(subject, length, seed + i),) for i, length in enumerate(lengths)]
    cut = run_cut(subject.compute, sequences, subject.state_shape, random.Random(seed))
    for found, inputs in zip(cut, sequences, strict=True):
        assert is_same(found, run_alone(subject.compute, inputs, subject.state_shape))


@cache
def exact_module(name: str) -> ModuleSubject:
    """A module whose linear layers are exact for any number of rows, as the kernels' are."""
    subject = recurrent_module(ALONE[name])
    row_by_row(subject.part)
    return subject


@pytest.mark.parametrize("name", ["bamba", "mamba", "kimi_linear"])
def test_other_activations_are_refused_by_name(name: str) -> None:
    family = STATE_SPACES[name]
    with pytest.raises(UnsupportedModel, match=rf"{name} models .*'gelu', where 'silu'"):
        recurrent_module(Family(name, fields={**family.fields, "hidden_act": "gelu"}))
