"""Prompts without earlier context by PyTorch's flash attention, on a stand-in of its function."""

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.attention.triton.support import INTERPRETED
from tests.models.attention.cases import KINDS
from tests.models.attention.scene import Scene, Shape, Span
from tests.models.attention.test_backends import assert_right
from tests.models.attention.varlen_stand_in import varlen_installed
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.attention.triton.backend import TritonAttention  # noqa: E402
from quire.models.attention.triton.fresh import takes, why_not_fresh  # noqa: E402

fresh = partial(TritonAttention, device=INTERPRETED, uses_flash=True)
PLAIN = Shape(dtype=torch.float16)


def test_this_torch_has_it() -> None:
    assert why_not_fresh() is None


def test_a_torch_without_its_parameters_is_named() -> None:
    with patch("torch.nn.attention.varlen.varlen_attn", lambda query, key, value, scale: query):
        assert "does not take enable_gqa, window_size" in (why_not_fresh() or "")


@cases(10)
@given(
    st.sampled_from([8, 64, 80]),
    st.sampled_from([None, 1, 7, 40]),
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
    st.sampled_from([1, 2, 3]),
)
def test_prompts_are_what_softmax_by_hand_is(
    size: int, window: int | None, lengths: list[int], group: int
) -> None:
    shape = replace(PLAIN, head_dim=size, v_head_size=size, window_size=window)
    scene = Scene(replace(shape, num_heads=2 * group), [Span(0, length) for length in lengths])
    with varlen_installed():
        assert_right(fresh, scene)


@pytest.mark.parametrize(
    ("kind", "is_taken"),
    [
        ("full", True),
        ("window", True),
        *((kind, False) for kind in ("chunk", "soft cap", "sinks", "wide keys", "latent", "int8")),
    ],
)
def test_layers_that_are_not_plain_are_tritons(kind: str, is_taken: bool) -> None:
    shape = replace(KINDS[kind], dtype=torch.bfloat16)
    assert takes(shape.layers[1], shape.codec) == is_taken
    single = replace(shape, dtype=torch.float32)
    assert not takes(single.layers[1], single.codec)


def test_steps_with_earlier_context_are_tritons() -> None:
    with patch("torch.nn.attention.varlen.varlen_attn", side_effect=AssertionError("asked")):
        assert_right(fresh, Scene(PLAIN, [Span(0, 9), Span(3, 1)]))
