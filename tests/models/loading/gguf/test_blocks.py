"""Blocks are taken apart into the numbers that the library `gguf` makes of them, to the bit."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.loading.gguf.blocks import take_apart
from quire.models.loading.gguf.ggml_types import GGML_TYPES, GgmlType

READ = {kind.name: kind for kind in GGML_TYPES.values() if kind.is_read and not kind.is_plain}


@pytest.mark.parametrize("kind", READ.values(), ids=READ)
@given(seed=st.integers(0, 2**32 - 1), num_rows=st.integers(1, 3), num_blocks=st.integers(1, 3))
def test_any_bytes_are_the_same_numbers(
    kind: GgmlType, seed: int, num_rows: int, num_blocks: int
) -> None:
    shape = (num_rows, num_blocks * kind.block_bytes)
    content = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    found = take_apart(torch.from_numpy(content), kind)
    with np.errstate(all="ignore"):  # random halves may be infinite
        expected = gguf.dequantize(content, gguf.GGMLQuantizationType(kind.id))
    assert np.array_equal(found.values().numpy(), expected, equal_nan=True)
    assert found.numbers.dtype == torch.int8
    assert found.numbers.shape == (num_rows, num_blocks * kind.block_size)
    assert found.group_size in (16, 32)


@pytest.mark.parametrize("kind", READ.values(), ids=READ)
def test_the_integers_have_as_many_bits_as_they_say(kind: GgmlType) -> None:
    content = np.random.default_rng(0).integers(0, 256, (8, 9 * kind.block_bytes), dtype=np.uint8)
    found = take_apart(torch.from_numpy(content), kind)
    spread = int(found.numbers.max()) - int(found.numbers.min())
    assert spread < 1 << found.num_bits
