"""What quantised K and V give back: near what came in, the same for each token whatever its
company, and never a number where there was none."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.config import QUANTISED, KVCacheDtype
from quire.models.kv.kv_codec import Codec, choose_codec
from tests.models.rounding import Exact, assert_within, rounded, unit
from tests.rounding import compounded

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
PEAKS = {"int8": 127, "fp8_e4m3": 448}

dtypes = st.sampled_from(DTYPES)
names = st.sampled_from(QUANTISED)
magnitudes = st.integers(-140, 120).map(lambda exponent: 2.0**exponent)


def round_trip(codec: Codec, tensor: Tensor) -> Tensor:
    return codec.decode(codec.encode(tensor), torch.empty_like(tensor))


def random_tokens(dtype: torch.dtype, magnitude: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    largest = torch.finfo(dtype).max / 2
    tokens = torch.randn(5, 3, 16, generator=generator, dtype=torch.float64) * magnitude
    return tokens.clamp(-largest, largest).to(dtype)


@given(names, dtypes, magnitudes, st.integers(0, 2**32))
def test_what_comes_back_is_within_half_a_quantum(
    name: KVCacheDtype, dtype: torch.dtype, magnitude: float, seed: int
) -> None:
    """Of int8 that is half a scale; of e4m3 a sixteenth of the number, or half the least one. The
    quotient by the scale is rounded, and what comes back, to the model's own dtype."""
    tokens = random_tokens(dtype, magnitude, seed)
    codec = choose_codec(name, dtype)
    back, exact = round_trip(codec, tokens), tokens.double()
    scales = codec.encode(tokens).scales
    assert scales is not None
    quantum = scales.double()[..., None]
    half = quantum / 2 if name is KVCacheDtype.INT8 else exact.abs() / 16 + quantum * 2.0**-10
    quotient = unit(torch.float32) * exact.abs()
    error = half + quotient + rounded(back.double(), dtype)
    assert_within(back, Exact(exact, error))


@given(names, dtypes, magnitudes, st.integers(0, 2**32))
def test_the_scale_is_the_least_bfloat16_that_no_element_passes(
    name: KVCacheDtype, dtype: torch.dtype, magnitude: float, seed: int
) -> None:
    tokens = random_tokens(dtype, magnitude, seed)
    scales = choose_codec(name, dtype).encode(tokens).scales
    assert scales is not None
    exact = tokens.abs().amax(-1).double() / PEAKS[name]
    assert scales.dtype == torch.bfloat16
    quotient = compounded(1, unit(torch.float32))
    assert (scales.double() >= exact * (1 - quotient)).all()
    below = scales.nextafter(torch.zeros_like(scales)).double()
    smallest = torch.finfo(torch.bfloat16).tiny
    assert ((below < exact * (1 + quotient)) | (scales == smallest)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", QUANTISED)
def test_zeros_stay_zeros_and_what_is_no_number_stays_none(
    name: KVCacheDtype, dtype: torch.dtype
) -> None:
    tokens = torch.ones(6, 2, 4, dtype=dtype)
    tokens[0] = 0.0
    tokens[1, 0, 2] = torch.nan
    tokens[2, 0, 0] = torch.inf
    tokens[3, 0, 3] = -torch.inf
    tokens[4, 0] = torch.tensor([torch.nan, torch.inf, 1, 0])
    back = round_trip(choose_codec(name, dtype), tokens)
    assert (back[0] == 0).all()
    assert not back[1:5, 0].isfinite().any()
    assert back[1:, 1].isfinite().all()
    assert back[5].isfinite().all()


@pytest.mark.parametrize("name", QUANTISED)
def test_a_token_is_kept_the_same_alone_and_in_company(name: KVCacheDtype) -> None:
    tokens = torch.randn(40, 3, 48) * torch.logspace(-9, 9, 40)[:, None, None]
    codec = choose_codec(name, torch.float32)
    alone = torch.cat([round_trip(codec, token[None]) for token in tokens])
    assert torch.equal(round_trip(codec, tokens), alone)


@given(names, st.integers(0, 2**32))
def test_what_was_kept_once_changes_no_more(name: KVCacheDtype, seed: int) -> None:
    """But that the scale, which was rounded up to bfloat16, may be the next lower one."""
    codec = choose_codec(name, torch.float32)
    once = round_trip(codec, random_tokens(torch.float32, 1.0, seed))
    next_scale = torch.finfo(torch.bfloat16).eps * once.double().abs()
    assert_within(round_trip(codec, once), Exact(once.double(), next_scale))


def test_plain_is_the_tensor_itself() -> None:
    tokens = torch.randn(3, 2, 8)
    assert choose_codec(KVCacheDtype.AUTO, torch.float32).encode(tokens).elements is tokens
