"""The list of evictable blocks against ordered mappings, one for each rank, which are slower and
obviously right."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.evictable_list import EvictableList, EvictionRank

NUM_BLOCKS = 9
IDS = st.lists(st.integers(1, NUM_BLOCKS - 1), unique=True)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["append", "prepend", *EvictionRank]), IDS),
        st.tuples(st.just("remove"), st.lists(st.integers(1, NUM_BLOCKS - 1), max_size=1)),
        st.tuples(st.just("pop"), st.just([])),
    )
)


@given(OPERATIONS)
def test_equals_ordered_mappings(operations: list[tuple[str | EvictionRank, list[int]]]) -> None:
    evictable = EvictableList(NUM_BLOCKS)
    models = [OrderedDict[int, None]() for _ in EvictionRank]
    for verb, block_ids in operations:
        new = [each for each in block_ids if not any(each in model for model in models)]
        if isinstance(verb, EvictionRank):
            evictable.append_to(verb, new)
            models[verb].update(dict.fromkeys(new))
        elif verb == "append":
            evictable.append(new)
            models[0].update(dict.fromkeys(new))
        elif verb == "prepend":
            evictable.prepend(new)
            models[0] = OrderedDict.fromkeys([*new, *models[0]])
        elif verb == "remove" and block_ids and block_ids[0] not in new:
            evictable.remove(block_ids[0])
            for model in models:
                model.pop(block_ids[0], None)
        elif verb == "pop" and any(models):
            first = next(model for model in models if model)
            assert evictable.pop_oldest() == first.popitem(last=False)[0]
        assert list(evictable) == [each for model in models for each in model]
        assert len(evictable) == sum(map(len, models))
        for rank, model in zip(EvictionRank, models, strict=True):
            assert evictable.ids_of(rank) == list(model)
            assert rank is EvictionRank.PLAIN or evictable.num_of(rank) == len(model)
            assert all(evictable.rank_of(each) is rank for each in model)
