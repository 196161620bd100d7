"""What every attention backend must do. A new one joins BACKENDS and passes as it stands."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.models.attention.reference import ReferenceAttention
from tests.models.attention.scene import Backend, Scene, Shape, Span

BACKENDS: dict[str, Backend] = {"reference": ReferenceAttention}

ATOL = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}

spans = st.lists(
    st.builds(Span, st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 40))),
    min_size=1,
    max_size=6,
)
shapes = st.builds(
    lambda heads, group, **rest: Shape(num_heads=heads * group, num_kv_heads=heads, **rest),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 7]),
    head_dim=st.sampled_from([32, 48, 64, 80, 128]),
    window=st.one_of(st.none(), st.integers(1, 90)),
    block_size=st.sampled_from([1, 2, 3, 8, 16, 33]),
    dtype=st.sampled_from(list(ATOL)),
)


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[str(request.param)]


def assert_right(backend: Backend, scene: Scene, seed: int = 0) -> None:
    paging = scene.paging(seed)
    out = scene.run(backend, paging, scene.store(paging))
    assert out.dtype == scene.shape.dtype
    tolerance = ATOL[scene.shape.dtype]
    torch.testing.assert_close(
        out.double().cpu(), scene.expected(), atol=tolerance, rtol=2 * tolerance
    )


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=60)
@given(shapes, spans, st.integers(0, 2**32))
def test_random_steps_agree_with_softmax_by_hand(
    name: str, shape: Shape, spans: list[Span], seed: int
) -> None:
    assert_right(BACKENDS[name], Scene(shape, spans, seed), seed)


EXAMPLES = {
    "a context of one token": [Span(0, 1)],
    "chunks that end at a block's edge": [Span(0, 16), Span(16, 16), Span(31, 1), Span(15, 17)],
    "decode only, far apart in length": [Span(n, 1) for n in (0, 1, 500, 3, 130, 60, 499, 15)],
    "a long chunk after a long context": [Span(300, 530), Span(7, 1)],
    "a long chunk after nothing": [Span(0, 530), Span(0, 2), Span(12, 1)],
}


@pytest.mark.parametrize("window", [None, 1, 16, 200], ids=str)
@pytest.mark.parametrize("spans", EXAMPLES.values(), ids=EXAMPLES)
def test_shapes_that_have_edges(backend: Backend, spans: list[Span], window: int | None) -> None:
    assert_right(backend, Scene(Shape(num_heads=2, num_kv_heads=1, window=window), spans))


@settings(max_examples=30)
@pytest.mark.parametrize("name", BACKENDS)
@given(shapes, spans)
def test_a_sequence_gets_the_same_alone_and_in_company(
    name: str, shape: Shape, spans: list[Span]
) -> None:
    shape = Shape(**{**vars(shape), "dtype": torch.float32})
    scene = Scene(shape, spans)
    paging = scene.paging(1)
    together = scene.run(BACKENDS[name], paging, scene.store(paging))
    alone: list[Tensor] = []
    for sequence in scene.sequences:
        solo = Scene(shape, [])
        solo.sequences = [sequence]
        paging = solo.paging(2)
        alone.append(solo.run(BACKENDS[name], paging, solo.store(paging)))
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=1e-6)


def test_new_keys_and_values_land_in_their_slots_and_nowhere_else(backend: Backend) -> None:
    scene = Scene(Shape(block_size=4), [Span(0, 7), Span(5, 1)])
    paging = scene.paging()
    store, untouched = scene.store(paging), scene.store(paging)
    scene.run(backend, paging, store)
    (slots,) = scene.batch(paging).slots
    for stored, before, of in (
        (store.keys, untouched.keys, [s.key[s.span.num_past :] for s in scene.sequences]),
        (store.values, untouched.values, [s.value[s.span.num_past :] for s in scene.sequences]),
    ):
        assert torch.equal(stored[1].flatten(0, 1)[slots], torch.cat(of))
        before[1].view(-1, *before[1].shape[2:])[slots] = torch.cat(of)
        assert torch.equal(stored[1].isnan(), before[1].isnan())
        assert stored[0].isnan().all()


def test_layers_of_one_step_may_differ_in_window(backend: Backend) -> None:
    wide, narrow = (Scene(Shape(window=window), [Span(40, 3), Span(50, 1)]) for window in (None, 8))
    paging = wide.paging()
    store = wide.store(paging)
    step = backend(store).begin(wide.batch(paging))
    for scene in (wide, narrow, wide):
        query = torch.cat([s.query for s in scene.sequences])
        key = torch.cat([s.key[s.span.num_past :] for s in scene.sequences])
        value = torch.cat([s.value[s.span.num_past :] for s in scene.sequences])
        out = step.attend(scene.layer, query, key, value)
        torch.testing.assert_close(out.double(), scene.expected(), atol=2e-6, rtol=2e-6)
