"""Linear layers that are joined say what each says alone, and share one weight."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.layers.joined_linears import join_dense, join_linears
from quire.models.layers.linears import PackedForward
from quire.models.layers.plain_weight import PlainWeights
from quire.models.native.library import Library
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.compressed_bf16 import bind_compressed_bf16
from quire.models.native.linear.quantised.grouping import bind_grouping
from quire.models.native.linear.quantised.w4a8 import bind_w4a8
from quire.models.native.linear.quantised.w8a8 import bind_w8a8
from quire.models.native.linear.quantised.w8a32 import bind_w8a32
from quire.models.weights.weight_kernel import WeightKernel
from tests.instructions import library_with_products

BF16, F32 = torch.bfloat16, torch.float32
KERNELS: dict[str, tuple[Callable[[Library], WeightKernel | None], torch.dtype]] = {
    "compressed bf16": (bind_compressed_bf16, BF16),
    "w8a8": (bind_w8a8, BF16),
    "w4a8": (bind_w4a8, BF16),
    "bf16 storage": (bind_bf16_storage, F32),
    "w8a32": (bind_w8a32, F32),
    "groups of four bits": (lambda library: bind_grouping(library, 4), F32),
    "plain": (lambda _: PlainWeights(), F32),
}
SMALL = st.integers(-8, 8)
WIDTHS = st.lists(st.sampled_from((1, 2, 16, 31, 32, 33, 64, 96)), min_size=1, max_size=5)


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> tuple[WeightKernel, torch.dtype]:
    bind, dtype = KERNELS[request.param]
    kernel = bind(library_with_products())
    assert kernel is not None
    return kernel, dtype


def layers(
    kernel: WeightKernel, dtype: torch.dtype, widths: list[int], num_columns: int, biased: int
) -> list[PackedForward]:
    """Every `biased`-th layer has a bias; numbers are such that all sums are exact."""
    generator = torch.Generator().manual_seed(sum(widths) + num_columns)

    def numbers(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator).to(dtype)

    return [
        PackedForward(
            kernel,
            kernel.pack(numbers(width, num_columns)),
            numbers(width) if biased and i % biased == 0 else None,
        )
        for i, width in enumerate(widths)
    ]


@given(
    widths=WIDTHS,
    num_columns=st.sampled_from((32, 96, 288)),
    num_rows=st.sampled_from((1, 3, 40)),
    biased=st.integers(0, 3),
)
def test_each_says_what_it_says_alone(
    kernel: tuple[WeightKernel, torch.dtype],
    widths: list[int],
    num_columns: int,
    num_rows: int,
    biased: int,
) -> None:
    own, dtype = kernel
    linears = layers(own, dtype, widths, num_columns, biased)
    x = torch.randint(-8, 9, (num_rows, num_columns), generator=torch.Generator().manual_seed(1))
    alone = [each(x.to(dtype)) for each in linears]
    joined = join_linears(linears)
    assert joined is not None
    found = joined(x.to(dtype))
    assert all(map(torch.equal, found, alone)) and len(found) == len(alone)
    assert [out.data_ptr() for out in found] == [
        found[0].data_ptr() + start * dtype.itemsize for start in joined.starts
    ]
    assert all(map(torch.equal, (each(x.to(dtype)) for each in linears), alone))


@given(widths=WIDTHS)
def test_a_joined_weight_takes_no_more_memory(
    kernel: tuple[WeightKernel, torch.dtype], widths: list[int]
) -> None:
    own, dtype = kernel
    linears = layers(own, dtype, widths, 64, 0)
    num_bytes = sum(each.weight.packed.nbytes for each in linears)
    joined = join_linears(linears)
    assert joined is not None
    storage = joined.whole.weight.packed.untyped_storage()
    assert {each.weight.packed.untyped_storage().data_ptr() for each in linears} == {
        storage.data_ptr()
    }
    heads = 0 if own.panel_rows == 1 else 64 * sum(-(-width // own.panel_rows) for width in widths)
    assert storage.nbytes() <= num_bytes + heads


@given(widths=WIDTHS)
def test_outputs_without_columns_between_them_are_one(
    kernel: tuple[WeightKernel, torch.dtype], widths: list[int]
) -> None:
    own, dtype = kernel
    fills = not any(width % own.panel_rows for width in widths[:-1])
    dense = join_dense(layers(own, dtype, widths, 64, 0))
    assert (dense is not None) == fills
    assert dense is None or dense.weight.num_rows == sum(widths)


def test_layers_of_other_inputs_are_not_joined(kernel: tuple[WeightKernel, torch.dtype]) -> None:
    own, dtype = kernel
    wide, narrow = (layers(own, dtype, [32], columns, 0) for columns in (64, 96))
    assert join_linears([*wide, *narrow]) is None
