"""The kinds of layers, and random ones, that the attention suites run."""

from dataclasses import replace

import torch
from hypothesis import strategies as st

from quire.models.config import KVCacheDtype
from tests.models.attention.scene import Shape, Span

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
KEPT_AS = list(KVCacheDtype)

KINDS: dict[str, Shape] = {
    "full": Shape(),
    "window": Shape(window_size=8),
    "chunk": Shape(chunk_size=8),
    "soft cap": Shape(softcap=0.5, window_size=300),
    "sinks": Shape(has_sinks=True, window_size=20),
    "wide keys": Shape(head_dim=48),
    "wide values": Shape(v_head_size=48),
    "latent": Shape(num_kv_heads=1, head_dim=40, is_latent=True),
    **{f"latent {name}": Shape(1, 1, 40, 32, is_latent=True, kept_as=name) for name in KEPT_AS[1:]},
    **{name: Shape(kept_as=name, window_size=40) for name in KEPT_AS[1:]},
    "parts": Shape(num_kv_heads=1, window_size=8, num_parts=2, index=2),
    "parts int8": Shape(4, 1, window_size=8, num_parts=4, kept_as=KVCacheDtype.INT8),
}

spans = st.lists(
    st.builds(Span, st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 40))),
    min_size=1,
    max_size=6,
)
reaches = st.sampled_from(["window", "chunk", "full"]).flatmap(
    lambda kind: st.tuples(
        st.integers(1, 90) if kind == "window" else st.none(),
        st.integers(1, 90) if kind == "chunk" else st.none(),
    )
)
options = st.builds(
    Shape,
    softcap=st.sampled_from([None, None, 0.3, 5.0]),
    has_sinks=st.sampled_from([False, False, True]),
    kept_as=st.sampled_from([KVCacheDtype.AUTO, *KEPT_AS]),
    block_size=st.sampled_from([1, 2, 3, 8, 16, 33]),
    hybrid=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)


@st.composite
def _shapes(draw: st.DrawFn) -> Shape:
    shape = replace(draw(options), num_heads=draw(st.sampled_from([1, 2, 3, 4, 7, 8, 12, 17])))
    if draw(st.sampled_from([False, False, False, True])):
        head_size, v_head_size = draw(st.sampled_from([(48, 32), (80, 64), (32, 32), (33, 31)]))
        return replace(
            shape, num_kv_heads=1, head_dim=head_size, v_head_size=v_head_size, is_latent=True
        )
    heads = draw(st.sampled_from([1, 2, 3]))
    head_size = draw(st.sampled_from([32, 33, 40, 48, 64, 80, 128, 256]))
    window, chunk = draw(reaches)
    return replace(
        shape,
        num_heads=shape.num_heads * heads,
        num_kv_heads=heads,
        head_dim=head_size,
        v_head_size=draw(st.sampled_from([head_size, head_size, 32, 96])),
        window_size=window,
        chunk_size=chunk,
        num_parts=draw(st.sampled_from([1, 1, 2, 3])),
        index=draw(st.sampled_from([1, 2])),
    )


shapes = _shapes()


def keys_of_any_bits(dtype: torch.dtype) -> st.SearchStrategy[torch.Tensor]:
    """[2, 1, 16]: anything that a model could say, infinite, not a number or subnormal."""
    kind = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    least, most = torch.iinfo(kind).min, torch.iinfo(kind).max
    numbers = st.lists(st.integers(least, most), min_size=32, max_size=32)
    any_bits = numbers.map(lambda some: torch.tensor(some, dtype=kind).view(dtype))
    seeds = st.integers(0, 2**32).map(torch.Generator().manual_seed)
    near_each_other = st.builds(
        lambda generator, scale: (torch.randn(32, generator=generator) * scale).to(dtype),
        seeds,
        st.sampled_from([1e-3, 1.0, 1e30]),
    )
    return st.one_of(any_bits, near_each_other).map(lambda flat: flat.view(2, 1, 16))
