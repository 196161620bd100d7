"""The blocks of a cache as one who looks on may see them: by codes and sets of one's own."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from quire.cache.block_pool import BlockState
from quire.cache.live.block_watch import FIRST_SET, HolderSet
from quire.server.observability.live.wire import BlockSets, Runs

_UNTOLD = -1


class LiveBlocks:
    """The codes of blocks, and since when each has had its code.

    `numbers` are those of the requests that are seen, each with the number under which it is; all
    others hold a block together, as `HELD`. So neither the sets nor their codes, nor when they
    change, tell how many they are.
    """

    def __init__(self, num_blocks: int) -> None:
        self._codes = [_UNTOLD] * num_blocks
        self._since_s: list[float | None] = [None] * num_blocks
        self._sets: dict[int, HolderSet] = {}
        self._code_of: dict[HolderSet, int] = {}
        self._num_sets = 0
        self._is_told = False

    def apply(
        self,
        runs: Iterable[int],
        sets: Mapping[int, HolderSet],
        numbers: Mapping[int, int],
        now: float,
    ) -> tuple[Runs, BlockSets]:
        """Take in runs of the engine's codes, of which `sets` has the holders, and return what
        changes of the own."""
        changed: Runs = []
        new_sets: BlockSets = []
        parts = iter(runs)
        for first, length, code in zip(parts, parts, parts, strict=True):
            if code >= FIRST_SET:
                holders = tuple(numbers[each] for each in sets[code] if each in numbers)
                code = self._own_code(holders, new_sets)
            self._put(first, length, code, now, changed)
        self._is_told = True
        return changed, new_sets

    def _own_code(self, holders: HolderSet, new_sets: BlockSets) -> int:
        if not holders:
            return BlockState.HELD
        code = self._code_of.get(holders)
        if code is None:
            code = self._code_of[holders] = FIRST_SET + self._num_sets
            self._num_sets += 1
            self._sets[code] = holders
            new_sets.append((code, holders))
        return code

    def _put(self, first: int, length: int, code: int, now: float, changed: Runs) -> None:
        """Give blocks a code; those that have it already are not told."""
        codes = self._codes
        index = first
        for has_code, same in groupby(codes[first : first + length], code.__eq__):
            num = len(list(same))
            if not has_code:
                changed += (index, num, code)
                codes[index : index + num] = [code] * num
                if self._is_told:
                    self._since_s[index : index + num] = [now] * num
            index += num

    def forget(self, gone: Iterable[int]) -> None:
        """Forget the sets in which requests are that have left, by their own numbers."""
        left = set(gone)
        if left:
            kept = {code: each for code, each in self._sets.items() if left.isdisjoint(each)}
            self._sets = kept
            self._code_of = {each: code for code, each in kept.items()}

    @property
    def sets(self) -> BlockSets:
        """All sets whose requests are there."""
        return list(self._sets.items())

    def runs(self) -> Runs:
        """Return runs of all blocks."""
        runs: Runs = []
        for first, length, code in _runs_of(self._codes):
            runs += (first, length, code)
        return runs

    def ages(self, now: float) -> list[int]:
        """Return for how many whole seconds blocks have had their codes, in flat pairs; -1 where
        they had them when they were told first."""
        ages: list[int] = []
        seconds = [-1 if since is None else int(now - since) for since in self._since_s]
        for _, length, age in _runs_of(seconds):
            ages += (length, age)
        return ages


def _runs_of(values: list[int]) -> Iterator[tuple[int, int, int]]:
    first = 0
    for value, same in groupby(values):
        length = len(list(same))
        yield first, length, value
        first += length
