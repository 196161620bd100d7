"""Operations of recurrent layers of random sizes, and how far their float32 results may be from the
exact ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from quire.models.recurrent.kernels import (
    DeltaNetInputs,
    DeltaNetWeights,
    RecurrentKernels,
    ScanInputs,
)
from quire.models.recurrent.pieces import Pieces
from tests.models.recurrent.cuts import Inputs

ROUNDING = 2.0**-24
FUNCTION_ERROR = 8
"""Roundings that the error of an exponential, a root or a quotient amounts to at most."""
NUM_ROUNDED = 6
"""Queries, keys, values, betas, outputs and normed outputs of a gated delta net."""


@dataclass(frozen=True, slots=True)
class RandomOperation:
    """An operation of some sizes.

    state_shape: the shape of one state.
    draw: returns the inputs of a sequence of some tokens, in a dtype.
    apply: computes them by kernels.
    terms: the most products in a sum.
    growth: whether an error in a state stays in all later ones.
    rounds_between: whether numbers in between are rounded to the dtype, after which they may be
        one rounding apart.
    """

    name: str
    state_shape: tuple[int, ...]
    draw: Callable[[int, torch.dtype, torch.Generator], Inputs]
    apply: Callable[[RecurrentKernels, Inputs, Tensor, Pieces], Tensor]
    terms: int
    growth: bool = True
    rounds_between: bool = False

    def relative_error(self, num_tokens: int, dtype: torch.dtype) -> float:
        """Return how far two float32 computations may be apart after some tokens, in parts of the
        largest number that is added.

        A sum of n products in any order is within n roundings of the exact one (Higham, Accuracy
        and Stability of Numerical Algorithms, 3.1), and a token has two such sums, and products
        with a few functions. A later step multiplies a state by an operator whose norm is 1 at
        most: exp of no positive number, and in the delta rule I - beta k k^T with |k| <= 1 and beta
        between 0 and 1. So errors of tokens add up, and those of two computations.
        """
        one_token = ROUNDING * (2 * self.terms + 4 * FUNCTION_ERROR)
        if self.rounds_between:
            one_token += NUM_ROUNDED * torch.finfo(dtype).eps
        return 2 * one_token * (num_tokens if self.growth else 1)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


SIZES = st.one_of(st.integers(1, 70), st.sampled_from([8, 16, 32, 64, 128]))
"""Whole vectors of all instruction sets, and ends of them."""


def convolution(
    channels: int, width: int, *, has_bias: bool, is_activated: bool
) -> RandomOperation:
    fixed = torch.Generator().manual_seed(channels)
    weight, bias = normal(fixed, channels, width), normal(fixed, channels)

    def draw_rows(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
        return (normal(generator, num_tokens, channels).to(dtype),)

    def apply(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
        rows = inputs[0]
        return kernels.causal_conv(
            rows,
            weight.to(rows),
            bias.to(rows) if has_bias else None,
            states,
            pieces,
            is_activated=is_activated,
        )

    shape = (channels, width - 1)
    return RandomOperation("convolution", shape, draw_rows, apply, width + 1, growth=False)


def delta_rule(
    key_heads: int, heads: int, key_size: int, value_size: int, *, by_channel: bool
) -> RandomOperation:

    def draw_heads(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
        rates = (heads, key_size) if by_channel else (heads,)
        return (
            normal(generator, num_tokens, key_heads, key_size).to(dtype),
            normal(generator, num_tokens, key_heads, key_size).to(dtype),
            normal(generator, num_tokens, heads, value_size).to(dtype),
            -normal(generator, num_tokens, *rates).abs(),
            normal(generator, num_tokens, heads).sigmoid().to(dtype),
        )

    def apply(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
        query, key, value, decay, beta = inputs
        return kernels.gated_delta_rule(query, key, value, decay, beta, states, pieces)

    shape = (heads, key_size, value_size)
    return RandomOperation("delta rule", shape, draw_heads, apply, key_size)


def delta_net(
    key_heads: int, heads: int, key_size: int, value_size: int, *, width: int, is_wide: bool
) -> RandomOperation:
    """A gated delta net. A state is the tail and the matrices, flat, one after the other. The norm
    enlarges no error: epsilon is 1. `is_wide`: norm and rates are float32."""
    channels = 2 * key_heads * key_size + heads * value_size
    fixed = torch.Generator().manual_seed(channels)
    weights = DeltaNetWeights(
        convolution=normal(fixed, channels, width) / width,
        log_rates=normal(fixed, heads),
        step_bias=normal(fixed, heads),
        norm=normal(fixed, value_size),
        epsilon=1.0,
        num_key_heads=key_heads,
        beta_scale=2.0 if is_wide else 1.0,
    )

    def draw_rows(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
        return (
            normal(generator, num_tokens, channels).to(dtype),
            normal(generator, num_tokens, heads, value_size).to(dtype),
            normal(generator, num_tokens, heads).to(dtype),
            normal(generator, num_tokens, heads).to(dtype),
        )

    def apply(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
        rows, tail = inputs[0], channels * (width - 1)
        wide = weights.norm.to(rows.device)
        used = weights._replace(
            convolution=weights.convolution.to(rows),
            log_rates=weights.log_rates.to(wide if is_wide else rows),
            step_bias=weights.step_bias.to(wide),
            norm=wide if is_wide else wide.to(rows),
        )
        parts = (
            torch.unflatten(states[:, :tail], 1, (channels, width - 1)),
            torch.unflatten(states[:, tail:], 1, (heads, key_size, value_size)),
        )
        return kernels.gated_delta_net(DeltaNetInputs(*inputs), used, parts, pieces)

    shape = (channels * (width - 1) + heads * key_size * value_size,)
    terms = key_size + value_size + width
    return RandomOperation("delta net", shape, draw_rows, apply, terms, rounds_between=True)


def state_space(
    groups: int, heads: int, head_size: int, state_size: int, *, has_skip: bool
) -> RandomOperation:
    fixed = torch.Generator().manual_seed(heads)
    rates, skip = -normal(fixed, heads).abs(), normal(fixed, heads) if has_skip else None

    def draw_rows(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
        return (
            normal(generator, num_tokens, heads, head_size).to(dtype),
            normal(generator, num_tokens, heads).abs(),
            normal(generator, num_tokens, groups, state_size).to(dtype),
            normal(generator, num_tokens, groups, state_size).to(dtype),
        )

    def apply(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
        rows, steps, b, c = inputs
        own = None if skip is None else skip.to(steps)
        scan = ScanInputs(rows, steps, rates.to(steps), b, c, own)
        return kernels.state_space(scan, states, pieces)

    shape = (heads, head_size, state_size)
    return RandomOperation("state space", shape, draw_rows, apply, state_size + 1)


def selective_scan(channels: int, state_size: int, *, has_skip: bool) -> RandomOperation:
    fixed = torch.Generator().manual_seed(channels)
    rates = -normal(fixed, channels, state_size).abs()
    skip = normal(fixed, channels) if has_skip else None

    def draw_rows(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
        return (
            normal(generator, num_tokens, channels).to(dtype),
            normal(generator, num_tokens, channels).abs(),
            normal(generator, num_tokens, state_size).to(dtype),
            normal(generator, num_tokens, state_size).to(dtype),
        )

    def apply(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
        rows, steps, b, c = inputs
        own = None if skip is None else skip.to(steps)
        scan = ScanInputs(rows, steps, rates.to(steps), b, c, own)
        return kernels.selective_scan(scan, states, pieces)

    shape = (channels, state_size)
    return RandomOperation("selective scan", shape, draw_rows, apply, state_size + 1)


@st.composite
def operations(draw: st.DrawFn) -> RandomOperation:
    """Operations of random sizes."""
    name, flag = draw(st.sampled_from(list(OF_MODELS))), draw(st.booleans())
    shared, first, second = draw(st.integers(1, 2)), draw(SIZES), draw(SIZES)
    heads = shared * draw(st.integers(1, 9 if first + second < 70 else 3))
    width = draw(st.integers(2, 6))
    if name == "convolution":
        channels = draw(st.one_of(st.just(first), st.integers(200, 600)))
        return convolution(channels, width, has_bias=draw(st.booleans()), is_activated=flag)
    if name == "delta rule":
        return delta_rule(shared, heads, first, second, by_channel=flag)
    if name == "delta net":
        return delta_net(shared, heads, first, second, width=width, is_wide=flag)
    if name == "state space":
        return state_space(shared, heads, first, second, has_skip=flag)
    return selective_scan(first, second, has_skip=flag)


OF_MODELS = {
    "convolution": convolution(6144, 4, has_bias=False, is_activated=True),
    "delta rule": delta_rule(3, 3, 128, 128, by_channel=False),
    "delta net": delta_net(2, 4, 128, 128, width=4, is_wide=True),
    "state space": state_space(1, 5, 64, 128, has_skip=True),
    "selective scan": selective_scan(1536, 16, has_skip=True),
}
"""Operations with enough work for several threads."""
