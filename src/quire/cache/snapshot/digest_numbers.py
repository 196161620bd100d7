"""Numbers replace the digests of blocks, so that a record of the cache contains only which blocks
were equal.

The cache depends on tokens only through its hash function. A record of the returned numbers in
order is therefore enough to repeat its decisions: a replay calls its own hash as often, and gets
the same numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple

from quire.cache.block_hash import BlockHash, group_key

NUMBER_BYTES = 8
NO_KEY = -1
"""The number in place of a key where a block has none."""


class ExtraHashCall(Exception):
    """The hash of a replay was called more often than that of the record."""


class DigestNumbers:
    """Numbers each digest that `block_hash`, which answers as `inner` does, has ever answered,
    since `restart`. `depths` has how many blocks are before each, by number.
    """

    def __init__(self, inner: BlockHash, num_groups: int) -> None:
        self.block_hash = BlockHash(inner.root, self._digest)
        self.depths: list[int] = []
        self._inner = inner.digest
        self._num_groups = max(num_groups, 1)
        self._digest_size = 0
        self._numbers: dict[bytes | None, int] = {}
        self._answered: list[int] = []
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._numbers)

    def stop(self) -> None:
        """Number and remember nothing from now on."""
        self._is_stopped = True
        self.depths, self._numbers, self._answered = [], {}, []

    def take(self) -> list[int]:
        """Return the numbers of the answers since this was last called, as the first and the length
        of each run of consecutive ones."""
        if not self._answered:
            return []
        answered, self._answered = self._answered, []
        return runs_of(answered)

    def restart(self, live: Iterable[bytes]) -> None:
        """Number only the `live` digests from now on, in their order."""
        kept = list(dict.fromkeys(live))
        self.depths = list(map(self.depths.__getitem__, self.numbers(kept)))
        self._numbers = dict(zip(kept, count()))
        self._answered = []

    def learn(self, chain: Iterable[bytes]) -> None:
        """Number the forgotten digests of a whole chain."""
        for depth, digest in enumerate(chain):
            if digest not in self._numbers and not self._is_stopped:
                self._digest_size = len(digest)
                self._numbers[digest] = len(self._numbers)
                self.depths.append(depth)

    def numbers(self, digests: Iterable[bytes]) -> list[int]:
        """Return the numbers of digests that the hash has answered."""
        return list(map(self._numbers.__getitem__, digests))

    def digests_of(self, keys: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the digests in the keys of blocks."""
        size = self._digest_size
        return iter(keys) if self._num_groups == 1 else (key[:size] for key in keys)

    def key_numbers(self, keys: Iterable[bytes | None]) -> list[int]:
        """Return the numbers of the keys of blocks, NO_KEY for None."""
        if self._num_groups == 1:
            return [self._numbers.get(key, NO_KEY) for key in keys]
        key_number = self.key_number
        return [NO_KEY if key is None else key_number(key) for key in keys]

    def key_number(self, key: bytes) -> int:
        """Return the number of a key, in which the block's layer group counts."""
        if self._num_groups == 1:
            return self._numbers[key]
        size = self._digest_size
        group = int.from_bytes(key[size:], "little")
        return self._numbers[key[:size]] * self._num_groups + group

    def _digest(self, parent: bytes, tokens: bytes, extra: bytes) -> bytes:
        digest = self._inner(parent, tokens, extra)
        if self._is_stopped:
            return digest
        number = self._numbers.get(digest)
        if number is None:
            above = self._numbers.get(parent)
            self._digest_size = len(digest)
            number = self._numbers[digest] = len(self._numbers)
            self.depths.append(0 if above is None else self.depths[above] + 1)
        self._answered.append(number)
        return digest


class NumberKey(NamedTuple):
    """The digest and the layer group of a key that a replay knows by its number."""

    number: int
    group: int

    @property
    def key(self) -> bytes:
        return group_key(digest_of(self.number), self.group)


class NumberedDigests:
    """The hash of a replay: it answers with the numbers that it was given, in their order, and
    raises ExtraHashCall behind the last.
    """

    def __init__(self, num_groups: int) -> None:
        self.block_hash = BlockHash(b"", self._digest)
        self._num_groups = max(num_groups, 1)
        self._answers: list[int] = []
        self._next = 0

    def give(self, runs: Sequence[int]) -> None:
        """Set the answers of the next calls, in runs."""
        self._answers, self._next = numbers_of(runs), 0

    @property
    def num_left(self) -> int:
        """The number of unused answers."""
        return len(self._answers) - self._next

    def key_of(self, key_number: int) -> NumberKey:
        return NumberKey(*divmod(key_number, self._num_groups))

    def _digest(self, parent: bytes, tokens: bytes, extra: bytes) -> bytes:
        if self._next == len(self._answers):
            raise ExtraHashCall("a block is hashed that was not in the recorded run")
        self._next += 1
        return digest_of(self._answers[self._next - 1])


def digest_of(number: int) -> bytes:
    """Return the digest of a replay that has this number."""
    return number.to_bytes(NUMBER_BYTES, "little")


def number_of(digest: bytes) -> int:
    """Return the number of a digest of a replay."""
    return int.from_bytes(digest, "little")


def runs_of(numbers: list[int]) -> list[int]:
    """Return the first and the length of each run of consecutive numbers, one after the other."""
    if not numbers:
        return []
    first, length = numbers[0], len(numbers)
    if numbers == list(range(first, first + length)):
        return [first, length]
    runs: list[int] = []
    following = None
    for number in numbers:
        if number == following:
            runs[-1] += 1
        else:
            runs += (number, 1)
        following = number + 1
    return runs


def numbers_of(runs: Sequence[int]) -> list[int]:
    """Return the numbers in runs."""
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return list(chain.from_iterable(range(first, first + length) for first, length in pairs))
