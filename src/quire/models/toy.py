"""A deterministic model without weights, for the first laws.

The value stored for a token folds in the whole prefix, as real KV does, and a row's logits read
every stored value of its prefix back through the block table. So a wrong block, a stale slot, a
skipped write or a broken hash chain changes the output. `toy_logits` is the same from tokens alone.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.models.batch import Batch

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]

MASK = (1 << 64) - 1
SEED = 0x9E3779B97F4A7C15
CHAIN = 0xD1342543DE82EF95
"""The chain: value[i] = CHAIN * value[i - 1] + mix(token, i). Odd, so that a step can be undone."""
CHAIN_INVERSE = pow(CHAIN, -1, 1 << 64)
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
LOGIT_RANGE = 8.0
"""Logits are spread evenly over this width: greedy has a winner, sampling many candidates."""


class ToyModel:
    """Implements `Model`. Its store is one 64-bit word per slot, on the CPU."""

    def __init__(self, vocab_size: int, num_blocks: int, block_size: int) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._store: Words = np.zeros(num_blocks * block_size, dtype=np.uint64)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def forward(self, batch: Batch) -> Tensor:
        (tables,) = (table.numpy() for table in batch.block_tables)
        starts = np.asarray(batch.query_starts, dtype=np.int64)
        positions = batch.positions.numpy()
        before = self._values_before(tables, positions[starts[:-1]])
        noise = _token_noise(batch.input_ids.numpy(), positions)
        self._store[batch.slots[0].numpy()] = _chain(before, noise, starts)

        rows = batch.logit_rows.numpy()
        chunks = np.searchsorted(starts, rows, side="right") - 1
        ends = np.asarray(batch.context_lens, dtype=np.int64)[chunks]
        lengths = ends - (starts[chunks + 1] - 1 - rows)
        return _logits(self._read_prefixes(tables[chunks], lengths), self._vocab_size)

    def _values_before(self, tables: NDArray[np.int32], positions: Indices) -> Words:
        """The stored value just before each chunk, read through its block table."""
        last = np.maximum(positions - 1, 0)
        blocks = tables[np.arange(len(tables)), last // self._block_size]
        values = self._store[blocks.astype(np.int64) * self._block_size + last % self._block_size]
        return np.where(positions == 0, np.uint64(SEED), values)

    def _read_prefixes(self, tables: NDArray[np.int32], lengths: Indices) -> Words:
        """One word for each row, out of all the values stored for its first `lengths` positions."""
        positions = np.arange(lengths.max(initial=0))
        slots = tables[:, positions // self._block_size].astype(np.int64) * self._block_size
        slots += positions % self._block_size
        words = _mix(self._store[slots] ^ _position_salt(positions))
        words[positions >= lengths[:, None]] = 0
        return _mix(words.sum(axis=1, dtype=np.uint64))


def toy_logits(token_ids: Sequence[int], vocab_size: int) -> Tensor:
    """Logits `[vocab_size]` after `token_ids`, in plain integers: the oracle of law 1."""
    value, total = SEED, 0
    for position, token in enumerate(token_ids):
        salt = (position + 1) * SEED & MASK
        value = (CHAIN * value + _mix_int(token * MIX_A & MASK ^ salt)) & MASK
        total += _mix_int(value ^ salt)
    state = np.array([_mix_int(total & MASK)], dtype=np.uint64)
    return _logits(state, vocab_size)[0]


def _mix_int(word: int) -> int:
    word = (word ^ word >> 30) * MIX_A & MASK
    word = (word ^ word >> 27) * MIX_B & MASK
    return word ^ word >> 31


def _mix(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MIX_A)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(MIX_B)
    return words ^ (words >> np.uint64(31))


def _position_salt(positions: Indices) -> Words:
    salt: Words = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(SEED)
    return salt


def _token_noise(token_ids: Indices, positions: Indices) -> Words:
    return _mix(token_ids.astype(np.uint64) * np.uint64(MIX_A) ^ _position_salt(positions))


def _chain(before: Words, noise: Words, starts: Indices) -> Words:
    """Every chunk's chain at once: scaled by CHAIN ** -t the recurrence is a plain running sum."""
    num_tokens = len(noise)
    powers = np.multiply.accumulate(np.full(num_tokens, CHAIN, dtype=np.uint64))
    inverses = np.multiply.accumulate(np.full(num_tokens, CHAIN_INVERSE, dtype=np.uint64))
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(noise * inverses)])
    first = starts[:-1]
    undone = np.concatenate([np.ones(1, dtype=np.uint64), inverses])[first]
    carried = before * undone - sums[first]
    values: Words = powers * (sums[1:] + np.repeat(carried, np.diff(starts)))
    return values


def _logits(states: Words, vocab_size: int) -> Tensor:
    tokens = _mix(np.arange(1, vocab_size + 1, dtype=np.uint64)).astype(np.uint32)
    words = tokens ^ (states >> np.uint64(32)).astype(np.uint32)[:, None]
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(15)
    words += states.astype(np.uint32)[:, None]
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(13)
    return torch.from_numpy((words >> np.uint32(8)).astype(np.float32)) * (LOGIT_RANGE / 2**24)
