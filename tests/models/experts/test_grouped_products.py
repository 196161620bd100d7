"""Grouped products under Triton's interpreter: against float64, and as captured graphs need them.

What they take of a GPU is found by compiling them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.experts.tiles import ProductTile, choose_product_tile
from tests.models.experts.layers import Product, products
from tests.models.rounding import Exact, assert_within, in_dtype, summed
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.experts.launch import (  # noqa: E402
    ProductWeight,
    combine_products,
    multiply_grouped,
    route_pairs,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
tiles = st.builds(
    ProductTile,
    rows=st.sampled_from([16, 64]),
    columns=st.sampled_from([16, 32]),
    depth=st.sampled_from([16, 64]),
    num_warps=st.just(1),
    num_stages=st.just(1),
)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill what is allocated with NaN, or with the largest integer."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def multiplied(product: Product, tile: ProductTile | None = None) -> Tensor:
    """[rows, top_k, width]."""
    weight = ProductWeight(product.weights, product.biases, product.activation)
    with poisoned_memory():
        routing = route_pairs(product.expert_ids.flatten(), product.num_experts)
        out = multiply_grouped(product.rows, weight, routing, tile)
    return out.view(product.num_rows, product.top_k, product.width)


def assert_close(found: Tensor, exact: Exact) -> None:
    """The interpreter cuts bfloat16 off where GPUs round, which is up to twice as far off."""
    is_cut = found.dtype is torch.bfloat16
    assert_within(found, exact._replace(error=2 * exact.error) if is_cut else exact)


@cases(60)
@given(products, st.none() | tiles)
def test_each_pair_is_multiplied_by_its_expert(product: Product, tile: ProductTile | None) -> None:
    """Experts that no pair names are NaN."""
    found = multiplied(product, tile)
    for row, experts in enumerate(product.expert_ids.tolist()):
        for rank, expert in enumerate(experts):
            if expert < product.num_experts:
                assert_close(found[row, rank], product.exact(row, expert))


@cases(60)
@given(st.lists(st.integers(-2, 12), min_size=1, max_size=60), st.integers(1, 12), st.booleans())
def test_pairs_are_sorted_by_expert(ids: list[int], num_experts: int, is_short: bool) -> None:
    dtype = torch.int32 if is_short else torch.int64
    with poisoned_memory():
        counts, starts, order = route_pairs(torch.tensor(ids, dtype=dtype), num_experts)
    known = sorted((expert, pair) for pair, expert in enumerate(ids) if 0 <= expert < num_experts)
    assert order[: len(known)].tolist() == [pair for _, pair in known]
    firsts = [sum(other < expert for other, _ in known) for expert in range(num_experts)]
    assert starts.tolist() == firsts
    assert counts.tolist() == [ids.count(expert) for expert in range(num_experts)]


def test_more_pairs_than_are_read_at_once_are_sorted() -> None:
    ids = torch.randint(5, (2500,))
    counts, starts, order = route_pairs(ids, 5)
    assert torch.equal(order.long(), ids.argsort(stable=True))
    assert torch.equal(counts, ids.bincount(minlength=5))
    assert torch.equal(starts, counts.cumsum(0) - counts)


@cases(40)
@given(products)
def test_a_token_is_the_weighted_sum_of_its_experts(product: Product) -> None:
    """Products of pairs without an expert are NaN, as memory may be."""
    ids = product.expert_ids
    parts = torch.randn(*ids.shape, product.width).to(product.dtype)
    weights = torch.rand(ids.shape)
    known = (ids < product.num_experts)[:, :, None]
    terms = (parts.double() * weights.double()[:, :, None]).where(known, 0)
    exact = Exact(terms.sum(1), summed(product.top_k + 1) * terms.abs().sum(1))
    poisoned = parts.where(known, torch.nan).flatten(0, 1)
    with poisoned_memory():
        found = combine_products(poisoned, ids, weights, product.num_experts)
    assert_close(found, in_dtype(exact, product.dtype))


@cases(30)
@given(products, st.none() | tiles, st.data())
def test_a_row_gets_the_same_alone_and_in_company(
    product: Product, tile: ProductTile | None, data: st.DataObject
) -> None:
    some = data.draw(st.lists(st.integers(0, product.num_rows - 1), min_size=1, unique=True))
    everything = multiplied(product, tile)
    weight = ProductWeight(product.weights, product.biases, product.activation)
    ids = product.expert_ids[some]
    routing = route_pairs(ids.flatten(), product.num_experts)
    found = multiply_grouped(product.rows[some], weight, routing, tile).view(*ids.shape, -1)
    known = ids < product.num_experts
    assert torch.equal(found[known], everything[some][known])


@given(
    st.sampled_from(DTYPES),
    st.integers(1, 10**6),
    st.integers(1, 512),
    st.sampled_from([80, 86, 89, 90, 100, 120]),
    st.booleans(),
)
def test_what_is_added_up_at_once_does_not_depend_on_the_pairs(
    dtype: torch.dtype, num_pairs: int, num_experts: int, capability: int, is_gated: bool
) -> None:
    device = DeviceProperties(capability, num_sms=100)
    one, other = (
        choose_product_tile(dtype, pairs, num_experts, device, is_gated=is_gated)
        for pairs in (1, num_pairs)
    )
    assert one.depth == other.depth


@given(st.lists(st.integers(0, 70), min_size=1, max_size=20), st.sampled_from([16, 128]))
def test_tiles_suffice_however_pairs_are_spread(counts: list[int], rows: int) -> None:
    tile = ProductTile(rows, 64, 64, 4, 3)
    needed = sum(-(-count // rows) for count in counts)
    assert needed <= tile.num_row_tiles(sum(counts), len(counts))


def test_few_pairs_launch_no_tile_for_experts_that_cannot_be_hit() -> None:
    assert ProductTile(16, 64, 64, 4, 4).num_row_tiles(8, 256) == 8
