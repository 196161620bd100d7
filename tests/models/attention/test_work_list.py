"""The work list of single tokens: each tile of keys once, in equal shares. Its kernels run under
the interpreter."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from quire.models.attention.triton.tiles import MAX_PARTS
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.attention.triton.list_kernel import count_tiles  # noqa: E402
from tests.models.attention.walk_kernel import walk  # noqa: E402

KEYS = 32


class Part(NamedTuple):
    program: int
    seq: int
    head_tile: int
    skipped: int
    taken: int
    slot: int


class Load(NamedTuple):
    """`spans`: the context and the new tokens of each sequence."""

    spans: Sequence[tuple[int, int]]
    head_tiles: int
    num_programs: int
    min_tiles: int
    window_size: int = 0

    @property
    def tiles(self) -> list[int]:
        """Those of each sequence, for one tile of heads."""
        seen = [min(context, self.window_size or context) for context, _ in self.spans]
        return [
            -(-count // KEYS) if num_new == 1 else 0
            for count, (_, num_new) in zip(seen, self.spans, strict=True)
        ]

    @property
    def share(self) -> int:
        total = sum(self.tiles) * self.head_tiles
        longest = -(-max(self.tiles) // MAX_PARTS)
        return max(-(-total // self.num_programs), self.min_tiles, longest)

    def parts(self) -> list[Part]:
        sizes = [num_new for _, num_new in self.spans]
        starts = torch.tensor([0, *sizes]).cumsum(0).int()
        contexts = torch.tensor([context for context, _ in self.spans], dtype=torch.int32)
        num_seqs, most = len(self.spans), self.head_tiles * len(self.spans) + 1
        counts = torch.empty(num_seqs + 2, dtype=torch.int32)
        numbers = (num_seqs, self.num_programs, self.min_tiles)
        count_tiles[(1,)](
            starts, contexts, counts, *numbers, self.window_size, 0, self.head_tiles, KEYS,
            MAX_PARTS, 4,
        )  # fmt: skip
        found = torch.full((self.num_programs, most, 5), -2, dtype=torch.int32)
        walk[(self.num_programs,)](counts, found, num_seqs, self.head_tiles, most)
        return [
            Part(program, *row)
            for program, rows in enumerate(found.tolist())
            for row in rows
            if row[0] != -2
        ]


loads = st.builds(
    Load,
    st.lists(
        st.tuples(
            st.sampled_from([1, KEYS, KEYS + 1, 100, 5000]) | st.integers(1, 3000),
            st.sampled_from([1, 1, 1, 0, 2]),
        ),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([0, 0, 1, 40, 400]),
)
ONE_LONG = Load([(512, 1)] * 5 + [(32768, 1)] + [(512, 1)] * 3, 2, 12, 8)


@cases(40)
@given(loads)
@example(ONE_LONG)
def test_each_tile_of_keys_is_in_one_part_and_shares_are_equal(load: Load) -> None:
    parts = load.parts()
    met: dict[tuple[int, int], list[int]] = defaultdict(list)
    of_program: dict[int, int] = defaultdict(int)
    for part in parts:
        met[part.seq, part.head_tile] += range(part.skipped, part.skipped + part.taken)
        of_program[part.program] += part.taken
        assert (part.slot < 0) == (part.taken == load.tiles[part.seq])
    wanted = {
        (seq, head_tile): [*range(tiles)]
        for seq, tiles in enumerate(load.tiles)
        for head_tile in range(load.head_tiles)
        if tiles
    }
    assert met == wanted
    assert all(taken <= load.share for taken in of_program.values())
    slots = [part.slot for part in parts if part.slot >= 0]
    assert len(set(slots)) == len(slots) and max(slots, default=0) < 2 * load.num_programs


@cases(40)
@given(loads)
@example(ONE_LONG)
def test_no_program_has_more_than_its_share_and_a_part(load: Load) -> None:
    total = load.head_tiles * sum(load.tiles)
    least_part = max(load.min_tiles, -(-max(load.tiles) // MAX_PARTS))
    taken: dict[int, int] = defaultdict(int)
    for part in load.parts():
        taken[part.program] += part.taken
    assert max(taken.values(), default=0) <= total / load.num_programs + least_part


def test_one_long_context_among_short_ones_costs_what_all_cost_together() -> None:
    """The issue's: 32k among 64 short ones, for one of 8 K/V heads an eighth of 132 multiprocessors
    of 4 programs. A program of its own for each context would meet 1,024 tiles for the long one."""
    load = Load([(512, 1)] * 64 + [(32768, 1)], 1, 66, 8)
    taken: dict[int, int] = defaultdict(int)
    for part in load.parts():
        taken[part.program] += part.taken
    assert max(load.tiles) == 1024 and max(taken.values()) == load.share == 32
