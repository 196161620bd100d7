"""Stacks of layers of the toy model, in any mixture."""

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


@st.composite
def layer_stacks(draw: st.DrawFn, min_size: int = 1) -> ToyLayers:
    """Layers that see all, a window or a chunk, of more or fewer words; some attend over the words
    of an earlier one. Each pattern and number of words is a layer group."""
    widths = st.sampled_from(draw(st.sampled_from([(1,), (1, 2), (2, 3)])))
    stack: list[ToyLayer] = []
    for pattern in draw(st.lists(patterns, min_size=min_size, max_size=4)):
        sources = [
            at
            for at, layer in enumerate(stack)
            if layer.source is None and layer.pattern in (FULL, pattern)
        ]
        source = draw(st.none() | st.sampled_from(sources)) if sources else None
        stack.append(ToyLayer(pattern, draw(widths), source))
    return tuple(stack)
