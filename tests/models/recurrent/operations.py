"""The operations of recurrent layers with random inputs, and what they should say, written again
in NumPy and float64."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.models.recurrent.kernels import RecurrentKernels, ScanInputs
from quire.models.recurrent.pieces import Pieces
from tests.models.recurrent.cuts import Inputs

Numbers = NDArray[np.float64]
CHANNELS, WIDTH = 6, 4
KEY_HEADS, VALUE_HEADS, KEY_SIZE, VALUE_SIZE = 2, 4, 8, 5
HEADS, HEAD_SIZE, GROUPS, STATE_SIZE = 6, 4, 2, 5


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


def _draw_scan(
    num_tokens: int, dtype: torch.dtype, generator: torch.Generator, *, by_head: bool
) -> Inputs:
    def normal(*shape: int) -> Tensor:
        return torch.randn(num_tokens, *shape, generator=generator)

    rows, shared = ((HEADS, HEAD_SIZE), (GROUPS,)) if by_head else ((CHANNELS,), ())
    return (
        normal(*rows).to(dtype),
        normal(rows[0]).abs(),
        normal(*shared, STATE_SIZE).to(dtype),
        normal(*shared, STATE_SIZE).to(dtype),
    )


def _draw_space(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return _draw_scan(num_tokens, dtype, generator, by_head=True)


def _draw_selective(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    return _draw_scan(num_tokens, dtype, generator, by_head=False)


def _rates(generator_seed: int, *shape: int) -> Tensor:
    return -2 * torch.rand(shape, generator=torch.Generator().manual_seed(generator_seed))


RATES, SKIP = _rates(6, HEADS), _rates(7, HEADS)
CHANNEL_RATES, CHANNEL_SKIP = _rates(8, CHANNELS, STATE_SIZE), _rates(9, CHANNELS)


def _space(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
    rows, steps, b, c = inputs
    return kernels.state_space(ScanInputs(rows, steps, RATES, b, c, SKIP), states, pieces)


def _plain_space(
    kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces
) -> Tensor:
    rows, steps, b, c = inputs
    return kernels.state_space(ScanInputs(rows, steps, RATES, b, c, None), states, pieces)


def _selective(kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces) -> Tensor:
    rows, steps, b, c = inputs
    scan = ScanInputs(rows, steps, CHANNEL_RATES, b, c, CHANNEL_SKIP)
    return kernels.selective_scan(scan, states, pieces)


def _plain_selective(
    kernels: RecurrentKernels, inputs: Inputs, states: Tensor, pieces: Pieces
) -> Tensor:
    rows, steps, b, c = inputs
    scan = ScanInputs(rows, steps, CHANNEL_RATES, b, c, None)
    return kernels.selective_scan(scan, states, pieces)


def _in_closed_form(inputs: list[Numbers], rates: Numbers) -> tuple[Numbers, Numbers]:
    """Return the outputs of channels with their own rows and steps [T, C], rates [C, N], and B and
    C [T, C, N], and the states [C, N] at the end. The state after token t is the sum over s <= t of

    exp(rate * (steps[s + 1] + ... + steps[t])) * steps[s] * rows[s] * B[s]
    """
    rows, steps, b, c = inputs
    sums, out = steps.cumsum(0), np.zeros_like(rows)
    for t in range(len(rows)):
        kept = np.exp(rates * (sums[t] - sums[: t + 1])[..., None])
        state = (kept * (steps[: t + 1] * rows[: t + 1])[..., None] * b[: t + 1]).sum(0)
        out[t] = (state * c[t]).sum(-1)
    return out, state


def _expect_plain_selective(inputs: list[Numbers]) -> tuple[Numbers, Numbers]:
    rows, steps, b, c = inputs
    b, c = (np.repeat(each[:, None], CHANNELS, axis=1) for each in (b, c))
    return _in_closed_form([rows, steps, b, c], CHANNEL_RATES.double().numpy())


def _expect_selective(inputs: list[Numbers]) -> tuple[Numbers, Numbers]:
    out, state = _expect_plain_selective(inputs)
    return out + CHANNEL_SKIP.double().numpy() * inputs[0], state


def _expect_plain_space(inputs: list[Numbers]) -> tuple[Numbers, Numbers]:
    rows, steps, b, c = inputs
    b, c = (np.repeat(each, HEADS * HEAD_SIZE // GROUPS, axis=1) for each in (b, c))
    rates = np.repeat(RATES.double().numpy(), HEAD_SIZE)[:, None]
    flat = [rows.reshape(len(rows), -1), np.repeat(steps, HEAD_SIZE, axis=1), b, c]
    out, state = _in_closed_form(flat, rates)
    return out.reshape(rows.shape), state.reshape(HEADS, HEAD_SIZE, STATE_SIZE)


def _expect_space(inputs: list[Numbers]) -> tuple[Numbers, Numbers]:
    out, state = _expect_plain_space(inputs)
    return out + SKIP.double().numpy()[:, None] * inputs[0], state


TAIL, MATRICES = (CHANNELS, WIDTH - 1), (VALUE_HEADS, KEY_SIZE, VALUE_SIZE)
SPACE, CHANNEL_STATES = (HEADS, HEAD_SIZE, STATE_SIZE), (CHANNELS, STATE_SIZE)
SUBJECTS = {
    "convolution": Subject(TAIL, _draw_rows, _conv, _expect_plain),
    "convolution with a bias": Subject(TAIL, _draw_rows, _biased_conv, _expect_biased),
    "delta rule": Subject(MATRICES, _draw_by_head, _delta, _expect_delta),
    "delta rule by channel": Subject(MATRICES, _draw_by_channel, _delta, _expect_delta),
    "state space": Subject(SPACE, _draw_space, _space, _expect_space),
    "state space without a skip": Subject(SPACE, _draw_space, _plain_space, _expect_plain_space),
    "selective scan": Subject(CHANNEL_STATES, _draw_selective, _selective, _expect_selective),
    "selective scan without a skip": Subject(
        CHANNEL_STATES, _draw_selective, _plain_selective, _expect_plain_selective
    ),
}
