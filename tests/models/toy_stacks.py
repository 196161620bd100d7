"""Stacks of layers of the toy model, in any mixture."""

from dataclasses import replace

from hypothesis import strategies as st

from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.models.toy import ToyLayer, ToyLayers

patterns = st.one_of(
    st.just(FULL),
    st.builds(
        AttentionPattern,
        st.sampled_from([AttentionType.SLIDING, AttentionType.CHUNKED]),
        st.integers(1, 20),
    ),
)


windows = patterns.filter(lambda pattern: pattern != FULL)


@st.composite
def _unequal(draw: st.DrawFn) -> list[ToyLayer]:
    """Two kinds that see and keep unlike: a block holds different numbers of them."""
    first, second = draw(st.sampled_from([(1, 2), (2, 1), (2, 3), (1, 3)]))
    return [ToyLayer(draw(patterns), first), ToyLayer(draw(windows), second)]


any_kinds = st.lists(st.builds(ToyLayer, patterns, st.sampled_from([1, 1, 2])), min_size=1)


@st.composite
def layer_stacks(draw: st.DrawFn, min_size: int = 1) -> ToyLayers:
    """Layers of some kinds, which see all, a window or a chunk, and keep more or fewer words; some
    attend over the words of an earlier one. Each kind is a layer group or several."""
    kinds = draw(any_kinds | _unequal())
    stack: list[ToyLayer] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=min_size, max_size=5)):
        sources = [
            at
            for at, layer in enumerate(stack)
            if layer.source is None and layer.pattern in (FULL, kind.pattern)
        ]
        shares = sources and draw(st.sampled_from([False, False, False, True]))
        stack.append(replace(kind, source=draw(st.sampled_from(sources)) if shares else None))
    return tuple(stack)
