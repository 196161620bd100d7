"""Reports the changed blocks since the last call, run-length coded.

The code of a block is its `BlockState`, or from FIRST_SET on a set of holders, which are numbers
given by the caller. Tables are append-only, so only their ends are examined.

    codes    0  16 16 16  2  2  1  1  1  17        first all of them: (0, 1, 0), (1, 3, 16), ...
    later    0  16 16 16  2  1  1  1  1  17        then the differences: (5, 1, 1)
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from quire.cache.block_pool import NULL_BLOCK, BlockState
from quire.cache.block_table import BlockTable
from quire.cache.kv_cache import KVCache

FIRST_SET = 16
"""The least code of a set of holders."""
HolderSet: TypeAlias = tuple[int, ...]
_CHANGED = re.compile(rb"[^\0]+")
MIN_SETS = 256
"""The minimum number of remembered sets before those with departed holders are dropped."""
NOBODY: HolderSet = ()
_UNTOLD = -1


class Holder(NamedTuple):
    """A table that holds blocks, the number by which its holder is told, and that of the admission
    since which it holds them.
    """

    number: int
    admission: int
    table: BlockTable


class BlockChanges(NamedTuple):
    """The changes since the last: `runs` is flat, of each run the first block, how many there are,
    and their code; `sets` has the holders by the codes that are new. The device's blocks come
    first, then the host's. A code is never used again for other holders.
    """

    runs: list[int]
    sets: list[tuple[int, HolderSet]]


@dataclass(slots=True)
class _Seen:
    """The part of a table that was seen: blocks by group, and how many of each were given back."""

    admission: int
    block_ids: list[list[int]]
    num_passed: list[int]
    num_covered: int = 0


class BlockWatch:
    """Follows the blocks of a cache, which it does not change."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._states = b""
        self._codes: list[int] = []
        self._seen: dict[int, _Seen] = {}
        self._holders: dict[int, HolderSet] = {}
        self._set_codes: dict[HolderSet, int] = {}
        self._num_sets = 0
        self._most_sets = MIN_SETS

    def changes(self, holders: Iterable[Holder]) -> BlockChanges:
        """Return the changes since the last call; the first call returns the whole state. `holders`
        are the current holders; blocks of others are `HELD`."""
        touched, present = set[int](), set[int]()
        for number, admission, table in holders:
            present.add(number)
            seen = self._seen.get(number)
            if (
                seen is None
                or seen.num_covered != table.num_covered
                or seen.num_passed != table.num_passed
                or seen.admission != admission
            ):
                self._follow(number, admission, table, touched)
        for number in self._seen.keys() - present:
            self._let_go(number, touched)
        if len(self._set_codes) > self._most_sets:
            self._forget_sets(present)
        states = bytes(self._cache.block_states)
        if not self._states:
            self._codes = [_UNTOLD] * len(states)
            touched.update(range(len(states)))
        else:
            _add_differing(self._states, states, touched)
        self._states = states
        return self._coded(touched)

    def _forget_sets(self, present: set[int]) -> None:
        """Forget, from time to time, the codes of sets with departed holders."""
        codes = self._set_codes
        self._set_codes = {each: codes[each] for each in codes if present.issuperset(each)}
        self._most_sets = 2 * len(self._set_codes) + MIN_SETS

    def _follow(self, number: int, admission: int, table: BlockTable, touched: set[int]) -> None:
        """Apply the blocks that a table has taken and released since the last call."""
        seen = self._seen.get(number)
        if seen is not None and seen.admission != admission:
            self._let_go(number, touched)
            seen = None
        if seen is None:
            groups = len(table.block_ids)
            seen = self._seen[number] = _Seen(admission, [[] for _ in range(groups)], [0] * groups)
        for group, num_passed in enumerate(table.num_passed):
            if num_passed > seen.num_passed[group]:
                passed = seen.block_ids[group][seen.num_passed[group] : num_passed]
                self._remove(number, passed, touched)
                seen.num_passed[group] = num_passed
        seen.num_covered = table.num_covered
        for known, ids in zip(seen.block_ids, table.block_ids, strict=True):
            if len(ids) > len(known):  # one that another group has given back may be among them
                new = ids[len(known) :]
                known += new
                self._add(number, new, touched)

    def _let_go(self, number: int, touched: set[int]) -> None:
        seen = self._seen.pop(number)
        for ids, num_passed in zip(seen.block_ids, seen.num_passed, strict=True):
            self._remove(number, ids[num_passed:], touched)

    def _add(self, number: int, block_ids: list[int], touched: set[int]) -> None:
        holders, before = self._holders, NOBODY
        after: HolderSet = (number,)
        for block_id in block_ids:
            others = holders.get(block_id, NOBODY)
            if others is not before:  # the blocks of a prefix that many share have one set
                before, after = others, tuple(sorted((*others, number)))
            holders[block_id] = after
        holders.pop(NULL_BLOCK, None)
        touched.update(block_ids)

    def _remove(self, number: int, block_ids: list[int], touched: set[int]) -> None:
        holders, before, after = self._holders, NOBODY, NOBODY
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            others = holders.pop(block_id)
            if others is not before:
                before, after = others, tuple(each for each in others if each != number)
            if after:
                holders[block_id] = after
        touched.update(block_ids)

    def _coded(self, block_ids: Iterable[int]) -> BlockChanges:
        """Return the runs of blocks whose code has changed."""
        codes, states, holders = self._codes, self._states, self._holders
        changes = BlockChanges([], [])
        runs, first, end, last = changes.runs, 0, 0, _UNTOLD
        for block_id in sorted(block_ids):
            code: int = states[block_id]
            if code == BlockState.HELD and block_id in holders:
                code = self._code_of(holders[block_id], changes)
            if codes[block_id] == code:
                continue
            codes[block_id] = code
            if block_id != end or code != last:
                if end > first:
                    runs += (first, end - first, last)
                first, last = block_id, code
            end = block_id + 1
        if end > first:
            runs += (first, end - first, last)
        return changes

    def _code_of(self, holder_set: HolderSet, changes: BlockChanges) -> int:
        code = self._set_codes.get(holder_set)
        if code is None:
            code = self._set_codes[holder_set] = FIRST_SET + self._num_sets
            self._num_sets += 1
            changes.sets.append((code, holder_set))
        return code


def _add_differing(before: bytes, states: bytes, touched: set[int]) -> None:
    """Add the positions at which two texts of one length differ."""
    differing = int.from_bytes(before) ^ int.from_bytes(states)
    if differing:
        for run in _CHANGED.finditer(differing.to_bytes(len(states))):
            touched.update(range(*run.span()))


def apply_runs(codes: list[int], runs: Iterable[int]) -> None:
    """Put runs into a picture of codes. Raises ValueError for runs that do not fit into it."""
    parts = iter(runs)
    for first, length, code in zip(parts, parts, parts, strict=True):
        if first < 0 or length < 1 or first + length > len(codes):
            raise ValueError(f"blocks {first} to {first + length} of {len(codes)}")
        codes[first : first + length] = [code] * length
