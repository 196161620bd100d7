"""A deterministic model without weights, for the invariant tests.

A stack of layers as a transformer has it, in 64-bit words: each stores a value for every token,
reads through the block table all the values that its token can see, and hands on what it read. So
the value stored by a later layer folds in the prefix, as real KV does, and a wrong block, a stale
slot, a skipped write or a broken hash chain changes the output. A recurrent layer folds each token
into the word of its sequence's state and hands on what that is then. `ToyText` is the same from
tokens alone.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyKind, CopyTime
from quire.cache.layout import Layout, build_layout
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV
from quire.models.batch import Batch, StepRows
from quire.models.config import KVSize
from quire.models.kv.streams import Instant, Mark
from quire.models.recurrent.pieces import Pieces

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]

MASK = (1 << 64) - 1
SEED = 0x9E3779B97F4A7C15
LAYER = 0xD1342543DE82EF95
"""The factor that, times the layer's number, distinguishes the values of layers."""
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
LOGIT_RANGE = 8.0
"""Logits are spread evenly over this width: greedy has a winner, sampling many candidates."""
TOY_HIDDEN_SIZE = 8
"""A state has an element for each byte of a word."""
TWO_FULL = (FULL, FULL)
"""The least with which a stored value depends on the whole prefix."""


@dataclass(frozen=True, slots=True)
class ToyLayer:
    """A layer that keeps `num_words` words of each token, or attends over those of the earlier
    layer `source`, which keeps them as long as its own `pattern` asks for."""

    pattern: AttentionPattern = FULL
    num_words: int = 1
    source: int | None = None


ToyLayers: TypeAlias = tuple[AttentionPattern | ToyLayer | None, ...]
"""The layers by what they see; a pattern alone is a layer of one word. None for a recurrent one."""


def toy_layers(layers: ToyLayers) -> tuple[ToyLayer | None, ...]:
    """Return all layers as such. One that attends over another's words has as many."""
    found: list[ToyLayer | None] = []
    for each in layers:
        layer = ToyLayer(each) if isinstance(each, AttentionPattern) else each
        source = None if layer is None or layer.source is None else found[layer.source]
        if layer is not None and source is not None:
            layer = replace(layer, num_words=source.num_words)
        found.append(layer)
    return tuple(found)


def toy_layout(layers: ToyLayers = TWO_FULL, *, hybrid: bool = True) -> Layout:
    """Return the layout of the toy model, which keeps words of 8 bytes of each token: a key and a
    value of one element each."""
    specs: list[KVSpec | None] = []
    sources: dict[int, int] = {}
    for index, layer in enumerate(toy_layers(layers)):
        if layer is None or layer.source is not None:
            specs.append(None)
        else:
            token_kv = TokenKV(layer.num_words, 1, 1, element_bytes=4)
            specs.append(KVSpec(token_kv, layer.pattern))
        if layer is not None and layer.source is not None:
            sources[index] = layer.source
    return build_layout(specs, hybrid=hybrid, sources=sources)


class ToyModel:
    """Implements `Model`. Its store is an array of words for each cache tensor, on the CPU."""

    def __init__(
        self,
        vocab_size: int,
        size: KVSize,
        layers: ToyLayers = TWO_FULL,
        *,
        hybrid: bool = True,
    ) -> None:
        layout = toy_layout(layers, hybrid=hybrid)
        self._vocab_size = vocab_size
        self._block_size = size.block_size
        self._layers = toy_layers(layers)
        self._places = layout.layer_places()
        widths = [
            size.block_size * form.num_parts * form.token_kv.num_kv_heads
            for form in (tensor.forms[0] for tensor in layout.tensors)
        ]
        self._store = [np.zeros((size.num_blocks, width), dtype=np.uint64) for width in widths]
        self._host = [np.zeros((size.num_host_blocks, width), dtype=np.uint64) for width in widths]
        self._states: Words = np.zeros((len(layers), max(size.num_states, 1)), dtype=np.uint64)
        self._host_states: Words = np.zeros((len(layers), size.num_host_states), dtype=np.uint64)
        self._num_copied = self._num_states_copied = 0

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        """Copy the blocks and states one by one: batches of copies must result in the same."""
        for kind, source, target in copies:
            if kind is CopyKind.STATE_OUT:
                self._host_states[:, target] = self._states[:, source]
            elif kind is CopyKind.STATE_IN:
                self._states[:, target] = self._host_states[:, source]
            if kind.is_of_state:
                self._num_states_copied += 1
                continue
            read = self._host if kind is CopyKind.IN else self._store
            written = self._host if kind is CopyKind.OUT else self._store
            for to, words in zip(written, read, strict=True):
                to[target] = words[source]
            self._num_copied += kind is not CopyKind.FORK

    def block_rows(self) -> "ToyRows | None":
        return ToyRows(self._store) if self._store else None

    def state_rows(self) -> "ToyRows | None":
        return ToyRows([self._states.T]) if self._states.shape[1] > 1 else None

    @property
    def state_form(self) -> str:
        """The layers with a word in a state."""
        return str([index for index, layer in enumerate(self._layers) if layer is None])

    def take_copy_time(self) -> CopyTime:
        """Return how many blocks and states were copied, in no time."""
        copied = CopyTime(self._num_copied, num_states=self._num_states_copied)
        self._num_copied = self._num_states_copied = 0
        return copied

    def forward(self, batch: Batch) -> Tensor:
        return self._logits(self._hidden(batch), batch)

    def forward_with_states(self, batch: Batch) -> StepRows:
        hidden, indices = self._hidden(batch), batch.states_indices
        assert indices is not None
        return StepRows(self._logits(hidden, batch), toy_states(hidden[indices.numpy()]))

    def _logits(self, hidden: Words, batch: Batch) -> Tensor:
        return _logits(hidden[batch.logits_indices.numpy()], self._vocab_size)

    def _hidden(self, batch: Batch) -> Words:
        """Store what the step's tokens keep, and return a word for each of them."""
        positions = batch.positions.numpy()
        starts = np.asarray(batch.query_starts, dtype=np.int64)
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        ends = np.asarray(batch.context_lens, dtype=np.int64)
        hidden = _token_noise(batch.input_ids.numpy(), positions)
        for index, layer in enumerate(self._layers):
            if layer is None:
                assert batch.pieces is not None
                hidden = _mix(hidden + self._carried(index, hidden, batch.pieces))
                continue
            table, tensor, _ = self._places[index]
            store = self._store[tensor].reshape(-1, layer.num_words)
            if layer.source is None:
                salts = np.array(_word_salts(index, layer.num_words), dtype=np.uint64)
                store[batch.slots[table].numpy()] = _mix(hidden[:, None] ^ salts)
            seen = _first_seen(layer.pattern, positions)
            begins = seen[starts[:-1]]
            sums, offsets = self._running_sums(
                store, batch.block_tables[table].numpy(), begins, ends
            )
            before = offsets[owners] - begins[owners]
            read = sums[before + positions + 1] - sums[before + seen]
            hidden = _mix(hidden + read)
        return hidden

    def _carried(self, layer: int, hidden: Words, pieces: Pieces) -> Words:
        """Return the word of a recurrent layer's state after each token; write those that the
        pieces end with."""
        states, after = self._states[layer], np.empty_like(hidden)
        words = _mix(hidden ^ np.uint64(_word_salts(layer, 1)[0]))
        starts = pieces.starts.tolist()
        spans = zip(pairwise(starts), pieces.reads.tolist(), pieces.writes.tolist(), strict=True)
        for (first, end), read, write in spans:
            word = int(states[read])
            for index in range(first, end):
                word = _mix_int((word + int(words[index])) & MASK)
                after[index] = word
            states[write] = word
        return after

    def _running_sums(
        self, store: Words, tables: NDArray[np.int32], begins: Indices, ends: Indices
    ) -> tuple[Words, Indices]:
        """Return the sums over what lies in the positions `begins .. ends` of each sequence, one
        after the other and from zero; and where each sequence begins in them.
        """
        lengths = ends - begins
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        owners = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begins, lengths)
        blocks = tables[owners, positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size
        words = _mix(store[slots] ^ _position_salt(positions)[:, None]).sum(1, dtype=np.uint64)
        return np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(words)]), offsets[:-1]


class ToyRows:
    """Implements `BlockRows` over words [blocks, words of a block] of each cache tensor, or words
    [states, layers]."""

    max_rows = 8

    def __init__(self, words: Sequence[Words]) -> None:
        self._words = words

    @property
    def row_bytes(self) -> int:
        return sum(words[0].nbytes for words in self._words)

    def new_rows(self, num_rows: int) -> Tensor:
        return torch.empty((num_rows, self.row_bytes), dtype=torch.uint8)

    def read(self, blocks: Sequence[int], rows: Tensor) -> Mark:
        for to, words in self._pairs(rows):
            to[: len(blocks)] = words[blocks]
        return Instant(0.0)

    def write(self, rows: Tensor, blocks: Sequence[int]) -> None:
        for held, words in self._pairs(rows):
            words[blocks] = held[: len(blocks)]

    def _pairs(self, rows: Tensor) -> Iterator[tuple[Words, Words]]:
        """Yield the part of the rows for each cache tensor, and its words."""
        whole: Words = rows.numpy().view(np.uint64)
        first = 0
        for words in self._words:
            yield whole[:, first : first + words.shape[1]], words
            first += words.shape[1]


class ToyText:
    """ToyModel's logits after each of some tokens, in plain integers: the oracle of invariant 1."""

    def __init__(self, vocab_size: int, layers: ToyLayers = TWO_FULL) -> None:
        self._vocab_size = vocab_size
        self._layers = toy_layers(layers)
        self._sums: list[list[int]] = [[0] for _ in layers]
        self._words = [0] * len(self._layers)
        self._hidden = 0
        self._position = 0

    def append(self, token_id: int) -> None:
        position, self._position = self._position, self._position + 1
        salt = (position + 1) * SEED & MASK
        hidden = _mix_int(token_id * MIX_A & MASK ^ salt)
        for index, layer in enumerate(self._layers):
            if layer is None:
                (salted,) = _word_salts(index, 1)
                word = self._words[index] + _mix_int(hidden ^ salted)
                self._words[index] = _mix_int(word & MASK)
                hidden = _mix_int((hidden + self._words[index]) & MASK)
                continue
            sums = self._sums[index if layer.source is None else layer.source]
            if layer.source is None:
                stored = [_mix_int(hidden ^ each) for each in _word_salts(index, layer.num_words)]
                sums.append((sums[-1] + sum(_mix_int(word ^ salt) for word in stored)) & MASK)
            read = sums[-1] - sums[layer.pattern.first_needed(position)]
            hidden = _mix_int((hidden + read) & MASK)
        self._hidden = hidden

    def states(self) -> Tensor:
        """Return the states [TOY_HIDDEN_SIZE] of the last token."""
        return toy_states(np.array([self._hidden], dtype=np.uint64))[0]

    def logits(self) -> Tensor:
        """Return the logits [vocab_size] after the last token."""
        return _logits(np.array([self._hidden], dtype=np.uint64), self._vocab_size)[0]


def toy_states(hidden: Words) -> Tensor:
    """Return the bytes of words as states [words, TOY_HIDDEN_SIZE]: small whole numbers, whose sums
    are exact."""
    flat = np.frombuffer(hidden.tobytes(), dtype=np.uint8).reshape(len(hidden), TOY_HIDDEN_SIZE)
    return torch.from_numpy(flat.astype(np.float32))


def toy_logits(token_ids: Sequence[int], vocab_size: int, layers: ToyLayers = TWO_FULL) -> Tensor:
    """Logits `[vocab_size]` after `token_ids`."""
    text = ToyText(vocab_size, layers)
    for token_id in token_ids:
        text.append(token_id)
    return text.logits()


def _word_salts(layer: int, num_words: int) -> list[int]:
    """Return what distinguishes the words that a layer keeps of a token."""
    return [((layer + 1) * LAYER + word * SEED) & MASK for word in range(num_words)]


def _first_seen(pattern: AttentionPattern, positions: Indices) -> Indices:
    """Return `AttentionPattern.first_needed` of many positions."""
    if pattern.size is None:
        return np.zeros_like(positions)
    if pattern.attention_type is AttentionType.SLIDING:
        return np.maximum(positions - pattern.size + 1, 0)
    return positions // pattern.size * pattern.size


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


def _logits(states: Words, vocab_size: int) -> Tensor:
    tokens = _mix(np.arange(1, vocab_size + 1, dtype=np.uint64)).astype(np.uint32)
    words = tokens ^ (states >> np.uint64(32)).astype(np.uint32)[:, None]
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(15)
    words += states.astype(np.uint32)[:, None]
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(13)
    return torch.from_numpy((words >> np.uint32(8)).astype(np.float32)) * (LOGIT_RANGE / 2**24)
