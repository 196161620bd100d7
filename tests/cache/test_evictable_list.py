"""The list of evictable blocks against an ordered mapping, which is slower and obviously right."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.evictable_list import EvictableList

NUM_BLOCKS = 9
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(1, NUM_BLOCKS - 1), unique=True)),
        st.tuples(st.just("remove"), st.lists(st.integers(1, NUM_BLOCKS - 1), max_size=1)),
        st.tuples(st.just("pop"), st.just([])),
    )
)


@given(OPERATIONS)
def test_equals_an_ordered_mapping(operations: list[tuple[str, list[int]]]) -> None:
    evictable, model = EvictableList(NUM_BLOCKS), OrderedDict[int, None]()
    for verb, block_ids in operations:
        if verb == "append":
            new = [block_id for block_id in block_ids if block_id not in model]
            evictable.append(new)
            model.update(dict.fromkeys(new))
        elif verb == "remove" and block_ids and block_ids[0] in model:
            evictable.remove(block_ids[0])
            del model[block_ids[0]]
        elif verb == "pop" and model:
            assert evictable.pop_oldest() == model.popitem(last=False)[0]
        assert list(evictable) == list(model)
        assert len(evictable) == len(model)
