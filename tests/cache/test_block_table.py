"""The order in which the blocks of a table are given back: the end of a text before its beginning,
in all groups alike, so that the beginning is evicted last.
"""

from hypothesis import example, given
from hypothesis import strategies as st

from quire.cache.block_pool import NULL_BLOCK
from quire.cache.block_table import tail_first

Groups = list[list[bool]]
GROUPS = st.lists(st.lists(st.booleans(), max_size=6), max_size=4)
"""For each group, and each block of the text, whether the group still holds a block for it."""


@given(GROUPS)
@example([[True] * 3, [False, True, True]])
@example([[True], [True] * 3])
def test_the_tail_of_all_groups_comes_first(groups: Groups) -> None:
    position_of: dict[int, int] = {}
    table: list[list[int]] = []
    for held in groups:
        ids = []
        for position, is_held in enumerate(held):
            block_id = len(position_of) + 1 if is_held else NULL_BLOCK
            if is_held:
                position_of[block_id] = position
            ids.append(block_id)
        table.append(ids)
    order = tail_first(tuple(table))
    assert sorted(order) == sorted(position_of), "each block once, and never the null block"
    positions = [position_of[block_id] for block_id in order]
    assert positions == sorted(positions, reverse=True)
