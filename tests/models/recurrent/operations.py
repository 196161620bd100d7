"""The operations of recurrent layers with random inputs, and what they should say, written again
in NumPy and float64."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.pieces import Pieces
from tests.models.recurrent.cuts import Inputs

Numbers = NDArray[np.float64]
CHANNELS, WIDTH = 6, 4
KEY_HEADS, VALUE_HEADS, KEY_SIZE, VALUE_SIZE = 2, 4, 8, 5


@dataclass(frozen=True, slots=True)
class Subject:
    """An operation.

    state_shape: the shape of one state.
    draw: returns the inputs of a sequence of some tokens, in a dtype.
    apply: computes them by kernels.
    expected: returns the outputs of a sequence, and its state at the end, by NumPy.
    """

    state_shape: tuple[int, ...]
    draw: Callable[[int, torch.dtype, torch.Generator], Inputs]
    apply: Callable[[RecurrentKernels, Inputs, Tensor, Pieces], Tensor]
    expected: Callable[[list[Numbers]], tuple[Numbers, Numbers]]


def _weights(generator_seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(generator_seed)
    return (
        torch.randn(CHANNELS, WIDTH, generator=generator),
        torch.randn(CHANNELS, generator=generator),
    )


WEIGHT, BIAS = _weights(4)


def _draw_rows(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return (torch.randn(num_tokens, CHANNELS, generator=generator).to(dtype),)


def _conv(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
    (rows,) = inputs
    weight = WEIGHT.to(rows.dtype)
    return kernels.causal_conv(rows, weight, None, states, pieces, is_activated=True)


def _biased_conv(
    kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces
) -> Tensor:
    (rows,) = inputs
    weight, bias = WEIGHT.to(rows.dtype), BIAS.to(rows.dtype)
    return kernels.causal_conv(rows, weight, bias, states, pieces, is_activated=False)


def _expect_conv(rows: Numbers, bias: Numbers) -> tuple[Numbers, Numbers]:
    padded = np.concatenate([np.zeros((WIDTH - 1, CHANNELS)), rows])
    weight = WEIGHT.double().numpy()
    out = [bias + (padded[token : token + WIDTH] * weight.T).sum(0) for token in range(len(rows))]
    return np.stack(out), padded[len(rows) :].T


def _expect_plain(inputs: list[Numbers]) -> tuple[Numbers, Numbers]:
    out, state = _expect_conv(inputs[0], np.zeros(CHANNELS))
    return out / (1 + np.exp(-out)), state


def _expect_biased(inputs: list[Numbers]) -> tuple[Numbers, Numbers]:
    return _expect_conv(inputs[0], BIAS.double().numpy())


def _draw_heads(
    num_tokens: int, dtype: torch.dtype, generator: torch.Generator, *, by_channel: bool
) -> Inputs:
    def normal(*shape: int) -> Tensor:
        return torch.randn(num_tokens, *shape, generator=generator)

    rates = (VALUE_HEADS, KEY_SIZE) if by_channel else (VALUE_HEADS,)
    return (
        normal(KEY_HEADS, KEY_SIZE).to(dtype),
        normal(KEY_HEADS, KEY_SIZE).to(dtype),
        normal(VALUE_HEADS, VALUE_SIZE).to(dtype),
        -normal(*rates).abs(),
        normal(VALUE_HEADS).sigmoid().to(dtype),
    )


def _draw_by_head(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return _draw_heads(num_tokens, dtype, generator, by_channel=False)


def _draw_by_channel(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return _draw_heads(num_tokens, dtype, generator, by_channel=True)


def _delta(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
    query, key, value, decay, beta = inputs
    return kernels.gated_delta_rule(query, key, value, decay, beta, states, pieces)


def _expect_delta(inputs: list[Numbers]) -> tuple[Numbers, Numbers]:
    query, key, value, decay, beta = inputs
    state = np.zeros((VALUE_HEADS, KEY_SIZE, VALUE_SIZE))
    out = np.zeros_like(value)
    for token in range(len(value)):
        for head in range(VALUE_HEADS):
            shared = head * KEY_HEADS // VALUE_HEADS
            q, k = query[token, shared], key[token, shared]
            q = q / np.sqrt(q @ q + 1e-6) / np.sqrt(KEY_SIZE)
            k = k / np.sqrt(k @ k + 1e-6)
            matrix = np.exp(decay[token, head])[..., None] * state[head]
            change = beta[token, head] * (value[token, head] - matrix.T @ k)
            state[head] = matrix + np.outer(k, change)
            out[token, head] = state[head].T @ q
    return out, state


TAIL, MATRICES = (CHANNELS, WIDTH - 1), (VALUE_HEADS, KEY_SIZE, VALUE_SIZE)
SUBJECTS = {
    "convolution": Subject(TAIL, _draw_rows, _conv, _expect_plain),
    "convolution with a bias": Subject(TAIL, _draw_rows, _biased_conv, _expect_biased),
    "delta rule": Subject(MATRICES, _draw_by_head, _delta, _expect_delta),
    "delta rule by channel": Subject(MATRICES, _draw_by_channel, _delta, _expect_delta),
}
