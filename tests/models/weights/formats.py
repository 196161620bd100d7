"""The kernels of linear layers, a row for each: the data of the suite that all of them pass."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native import Library
from quire.models.native.library import ISAS
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.compressed_bf16 import bind_compressed_bf16
from quire.models.native.linear.quantised.grouped import bind_grouped
from quire.models.native.linear.quantised.grouping import bind_grouping
from quire.models.native.linear.quantised.w4a8 import bind_w4a8
from quire.models.native.linear.quantised.w8a8 import MIN_COLUMNS, NUM_OUTLIERS, bind_w8a8
from quire.models.native.linear.quantised.w8a32 import bind_w8a32
from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.lazy_weight import OpenedWeight
from quire.models.weights.weight_kernel import WeightKernel
from tests.instructions import ISAS_WITH_PRODUCTS
from tests.models.rounding import summed, unit
from tests.rounding import compounded

Weight = Tensor | OpenedWeight
FLOAT = unit(torch.float32)
GROUP = 256
"""Columns of x that are quantised to bytes together."""
LEAST = 2.0**-100
"""Rows of bytes of less than this are zeros."""
HALF_STEP = 0.5 + 127 * compounded(4, FLOAT)
"""A number may be 127 steps large: what it is of them, and what they are, is rounded four times."""
LEAST_HALF = 2.0**-24

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257)
WIDTHS = st.one_of(st.integers(1, 200), st.sampled_from((*EDGES, 511, 513, 896)))
COUNTS = st.one_of(st.integers(1, 40), st.sampled_from((48, 49, 64, 97, 126, 127, 200, 260)))
SHAPES = st.tuples(COUNTS, WIDTHS, WIDTHS)
"""Rows, columns and depth of a product: m, n and k."""
FEW = st.tuples(st.integers(1, 3), st.integers(1, 33), st.integers(1, 100))
"""Where an interpreter takes seconds for more."""
SEVERAL = st.lists(
    st.one_of(st.integers(1, 100), st.sampled_from((31, 32, 33, 64))), min_size=2, max_size=4
)
SOME = st.sampled_from((1, 9, 60))
EXPONENTS = (-30, -12, 0, 12)


class Quantised(NamedTuple):
    """Numbers are about `scales` times `numbers`."""

    numbers: Tensor
    scales: Tensor


class Terms(NamedTuple):
    """A product, and the product of the absolute values, in float64."""

    value: Tensor
    sizes: Tensor


@dataclass(frozen=True, slots=True)
class Format:
    """A kernel, and what its suite must know of it.

    bind: return it of the library for an instruction set, or None where that lacks its products.
    made: return a random weight that it takes, [n, k] or a few columns more, of a dtype and a seed.
    odd: the same, of numbers of any bits.
    error: return what rounding may change, of x and of the sums of absolute products.
    off: return how far a packed number may be from the given one; None where this is no matter of
        single numbers.
    num_bytes: return the bytes of a packed weight [n, k]; None where they depend on its numbers.
    isas: the instruction sets that have it, none if it is no kernel of the library.
    panel_rows: all joined weights but the last have whole multiples of so many rows.
    joined: the rows of each of several weights, their columns, and the rows of x.
    is_planned: whether the planned bytes are those of a weight that is packed so.
    exponents: W may be multiplied by these powers of ten.
    has_outliers: columns of W are packed in more bits, if it has MIN_COLUMNS.
    """

    bind: Callable[[Library], WeightKernel | None]
    made: Callable[[int, int, torch.dtype, int], Weight]
    error: Callable[[Tensor, Tensor], Tensor]
    odd: Callable[[int, int, torch.dtype, int], Weight] | None = None
    off: Callable[[Tensor], Tensor] | None = None
    num_bytes: Callable[[int, int], int] | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    isas: tuple[str, ...] = ISAS
    panel_rows: int = 1
    is_planned: bool = True
    exponents: tuple[int, ...] = (0,)
    quantises_x: bool = False
    has_outliers: bool = False
    shapes: st.SearchStrategy[tuple[int, int, int]] = SHAPES
    joined: st.SearchStrategy[tuple[list[int], int, int]] = st.tuples(SEVERAL, WIDTHS, SOME)

    def terms(self, x: Tensor, weight: Weight, rows: Tensor) -> Terms:
        """Return the product by `rows` [n, k], the packed numbers in float32, of what the kernel
        sees of x."""
        if isinstance(weight, OpenedWeight):
            return Terms(x.double() @ rows.double().T, x.double().abs() @ sizes_of(weight.weight).T)
        if not self.quantises_x:
            return Terms(x.double() @ rows.double().T, x.double().abs() @ rows.double().abs().T)
        return quantised_terms(x, rows.double(), outliers(x.shape[1]) & self.has_outliers)


def quantised_terms(x: Tensor, rows: Tensor, apart: Tensor) -> Terms:
    """Columns `apart` [k] are multiplied in bfloat16, the others as bytes."""
    kept, ours = x[:, apart].bfloat16().double(), rows[:, apart]
    value, sizes = kept @ ours.T, kept.abs() @ ours.abs().T
    for first in range(0, x.shape[1], GROUP):
        part = slice(first, first + GROUP)
        q = quantised(x[:, part].masked_fill(apart[part], 0))
        value += q.scales * (q.numbers @ rows[:, part].T)
        sizes += q.scales * (q.numbers.abs() @ rows[:, part].abs().T)
    return Terms(value, sizes)


def quantised(rows: Tensor) -> Quantised:
    """By the largest of each row, in the steps of float32 that the kernel takes."""
    largest = rows.float().abs().amax(-1, keepdim=True)
    inverse = torch.where(largest < LEAST, 0.0, torch.full_like(largest, 127).div(largest))
    return Quantised((rows.float() * inverse).round().double(), (largest / 127).double())


def sizes_of(weight: GroupedWeight) -> Tensor:
    """A number is multiplied by its scale; the offset is added, or, in four bits without one, eight
    scales."""
    extra = 8 * weight.scales.abs() if weight.offsets is None else weight.offsets.abs()
    sizes, more = (
        each.double().repeat_interleave(weight.group_size, -1)
        for each in (weight.scales.abs(), extra)
    )
    return weight.numbers.double().abs() * sizes + more


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def spread(k: int, seed: int = 0) -> Tensor:
    """Sizes of columns: all of them different, from 1 to k."""
    return torch.randperm(k, generator=torch.Generator().manual_seed(seed)).float() + 1


def outliers(k: int, seed: int = 0) -> Tensor:
    """Return which columns have the largest sizes of `spread`, if there are enough for any."""
    return spread(k, seed) > k - NUM_OUTLIERS if k >= MIN_COLUMNS else torch.zeros(k).bool()


def normal(n: int, k: int, dtype: torch.dtype, seed: int) -> Tensor:
    return numbers(n, k, dtype=dtype, seed=seed)


def halves(n: int, k: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers that bfloat16 holds."""
    return normal(n, k, torch.bfloat16, seed).to(dtype)


def whole_groups(n: int, k: int, dtype: torch.dtype, seed: int) -> Tensor:
    return normal(n, whole(k, 16), dtype, seed)


def any_bits(n: int, k: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers that bfloat16 holds: any bits, few exponents, zeros, numbers as trained weights are;
    some of each."""
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    every = torch.randint(-(2**15), 2**15, (n, k), generator=generator, dtype=torch.int16)
    few = every & draw.choice((0x007F, 0x01FF, 0x0FFF, -0x7F01))
    plain = torch.randn(n, k, generator=generator).bfloat16().view(torch.int16)
    most, rare = draw.choices((every, few, plain, torch.zeros_like(every)), k=2)
    is_rare = torch.rand(n, k, generator=generator) < draw.choice((0.0, 1e-3, 0.1))
    return torch.where(is_rare, rare, most).view(torch.bfloat16).to(dtype)


def in_groups(
    n: int, k: int, dtype: torch.dtype, seed: int, *, sizes: Sequence[int], bits: Sequence[int]
) -> OpenedWeight:
    """Random integers of all their bits, with scales of many sizes and signs."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    size, num_bits, has_offsets = draw.choice(sizes), draw.choice(bits), draw.random() < 0.5
    lowest = 0 if has_offsets and num_bits < 8 else -(1 << num_bits - 1)
    shape, groups = (n, whole(k, size)), (n, whole(k, size) // size)
    integers = torch.randint(lowest, lowest + (1 << num_bits), shape, generator=generator)
    scales, offsets = (
        (torch.randn(groups, generator=generator) * 2.0**exponent).half() for exponent in (-12, -9)
    )
    scales[0, 0], offsets[-1, -1] = LEAST_HALF, 0
    if draw.random() < 0.5:
        scales, offsets = scales.float() * 1.1, offsets.float() * 1.1
    weight = GroupedWeight(
        integers.to(torch.int8), scales, offsets if has_offsets else None, num_bits
    )
    return OpenedWeight(weight, dtype)


def whole(count: int, of: int) -> int:
    return -(-count // of) * of


def roundings(more: int, each: int = 1) -> Callable[[Tensor, Tensor], Tensor]:
    """Of a sum of k products: `each` for a product, and `more`."""
    return lambda x, sizes: summed(each * x.shape[1] + more) * sizes


def byte_roundings(more: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, sizes: sums_error(x, sizes) + more * FLOAT * sizes


def sums_error(x: Tensor, sizes: Tensor) -> Tensor:
    """The sum of a group of integers is exact; it becomes a float, is scaled and added to the
    others, and all is scaled and added to the bias. Sums of the least may be zero."""
    num_groups = -(-x.shape[1] // GROUP)
    return summed(num_groups + 4) * sizes + torch.finfo(torch.float32).smallest_normal * num_groups


def half_roundings(x: Tensor, sizes: Tensor) -> Tensor:
    """Each number is rounded once as it is widened, in parts of its offset: 4 of a normal
    number."""
    return roundings(3)(x, sizes) + x.double().abs().sum(-1, keepdim=True) * 8 * FLOAT


def half_steps(weight: Tensor) -> Tensor:
    return HALF_STEP * weight.double().abs().amax(-1, keepdim=True) / 127 + LEAST


def half_steps_of_groups(weight: Tensor) -> Tensor:
    """The scale is rounded to a half, by which a number of 127 steps may be off as well."""
    size = 32 if weight.shape[1] % 32 == 0 else 16
    steps = weight.double().abs().view(len(weight), -1, size).amax(-1) / 127
    half = unit(torch.float16)
    wide = steps.repeat_interleave(size, 1)
    return wide * (0.5 + 127 * (half + 4 * FLOAT)) * (1 + half) + 128 * LEAST_HALF


def triton_grouped(library: Library) -> WeightKernel:
    from quire.models.layers.triton.grouped import TritonGrouped

    return TritonGrouped(torch.device("cpu"))


BYTES = partial(
    Format,
    made=normal,
    dtypes=(torch.bfloat16, torch.float32),
    isas=ISAS_WITH_PRODUCTS,
    panel_rows=16,
    exponents=EXPONENTS,
    quantises_x=True,
)
ONCE = byte_roundings(1)  # a row's numbers were rounded once
WITH_OUTLIERS = byte_roundings(NUM_OUTLIERS + 2)  # sums begin with those of outliers
ANY_GROUPS = partial(in_groups, sizes=(8, 16, 32, 48, 64, 128, 256, 320), bits=(2, 3, 4, 5, 8))
ALL_GROUPS = st.tuples(SEVERAL, st.just(3840), SOME)
FORMATS = MappingProxyType(
    {
        "bf16_storage": Format(
            bind_bf16_storage,
            halves,
            roundings(1),
            any_bits,
            num_bytes=lambda n, k: whole(n, 32) * k * 2,
            panel_rows=32,
        ),
        "compressed_bf16": Format(
            bind_compressed_bf16,
            halves,
            roundings(1, 2),  # of a product and of a sum, and of the sum with the bias
            any_bits,
            dtypes=(torch.bfloat16,),
            isas=ISAS_WITH_PRODUCTS,
            panel_rows=32,
            is_planned=False,
        ),
        "w8a32": Format(
            bind_w8a32,
            normal,
            roundings(3),  # of the scale, here and as it is unpacked, and of the bias
            off=half_steps,
            num_bytes=lambda n, k: whole(n, 32) * (k + 4),
            panel_rows=32,
            exponents=EXPONENTS,
        ),
        "w8a8": BYTES(
            bind_w8a8,
            error=ONCE,
            off=half_steps,
            num_bytes=lambda n, k: whole(n, 16) * (whole(k, 4) + 4),
            is_planned=False,  # a plan counts outliers
        ),
        "w4a8": BYTES(bind_w4a8, error=ONCE, is_planned=False),
        "w8a8 with outliers": BYTES(bind_w8a8, error=WITH_OUTLIERS, has_outliers=True),
        "w4a8 with outliers": BYTES(bind_w4a8, error=WITH_OUTLIERS, has_outliers=True),
        "grouped": Format(bind_grouped, ANY_GROUPS, roundings(3), joined=ALL_GROUPS),
        "grouping 4": Format(
            partial(bind_grouping, bits=4), whole_groups, half_roundings, exponents=(-3, 0, 3)
        ),
        "grouping 8": Format(
            partial(bind_grouping, bits=8),
            whole_groups,
            half_roundings,
            off=half_steps_of_groups,
            exponents=(-3, 0, 3),
        ),
        "triton grouped": Format(
            triton_grouped,
            partial(in_groups, sizes=(16, 32, 96), bits=(4, 8)),
            roundings(2),
            dtypes=(torch.float32, torch.float16),
            isas=(),
            shapes=FEW,
            joined=st.tuples(
                st.lists(st.integers(1, 9), min_size=2, max_size=3), st.just(96), st.just(1)
            ),
        ),
    }
)
