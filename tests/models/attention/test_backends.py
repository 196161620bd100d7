"""What every attention backend must do. A new one that is registered passes as it stands."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.attention.backend import AttentionBackend, AttentionSetup
from quire.models.attention.choice import build_attention, registered
from quire.models.config import AttentionBackendName, KVCacheDtype
from quire.models.kv.kv_codec import EncodedKV, choose_codec
from quire.models.kv.kv_store import KVStore
from tests.long import long_but_for
from tests.models.attention.cases import KEPT_AS, KINDS, shapes, spans
from tests.models.attention.scene import Backend, Scene, Sequence, Shape, Span, look
from tests.models.rounding import assert_within
from tests.profiles import cases

REGISTERED = [name for name in AttentionBackendName if name is not AttentionBackendName.AUTO]
FAST = [name for name in REGISTERED if name is not AttentionBackendName.TRITON]
"""An interpreter is slow: its random steps are fewer, and in its own tests."""
IN_EVERY_RUN = [name for name in REGISTERED if name is not AttentionBackendName.EAGER]
"""The backends whose edges are in every run; the eager one has random steps, as they do."""
HERE = AttentionSetup(torch.device("cpu"), choose_codec(KVCacheDtype.AUTO, torch.float32), 32, 32)


def backend_of(name: AttentionBackendName) -> Backend:
    """The registered backend, where it runs on this CPU; Triton's kernels are interpreted. What it
    cannot do of random cases, as float16 in the C++ kernels, is passed over."""
    why = registered(name).why_not(HERE)
    if why is not None:
        pytest.skip(why)

    def build(store: KVStore) -> AttentionBackend:
        try:
            return build_attention(store, name)
        except ValueError:
            assume(False)
            raise

    return build


@pytest.fixture(params=REGISTERED)
def name(request: pytest.FixtureRequest) -> AttentionBackendName:
    given: AttentionBackendName = request.param
    return given


@pytest.fixture
def backend(name: AttentionBackendName) -> Backend:
    return backend_of(name)


def assert_close(out: Tensor, scene: Scene) -> None:
    assert out.dtype == scene.shape.dtype
    assert_within(out, scene.expected())


def assert_both_right(one: Tensor, other: Tensor, scene: Scene) -> None:
    """What should be the same, and is rounded in another order: neither is off by more than
    rounding explains, and so they are as near to each other."""
    exact = scene.expected()
    for out in (one, other):
        assert_within(out, exact)


def assert_right(backend: Backend, scene: Scene, seed: int = 0) -> None:
    paging = scene.paging(seed)
    assert_close(scene.run(backend, paging, scene.store(paging)), scene)


@pytest.mark.parametrize("name", FAST)
@cases(60)
@given(shapes, spans, st.integers(0, 2**32))
def test_random_steps_agree_with_softmax_by_hand(
    name: AttentionBackendName, shape: Shape, spans: list[Span], seed: int
) -> None:
    assert_right(backend_of(name), Scene(shape, spans, seed), seed)


WIDE = Shape(num_heads=24, num_kv_heads=2, head_dim=256, v_head_size=256)
EXAMPLES = {
    "a context of one token": [Span(0, 1)],
    "chunks that end at a block's edge": [Span(0, 16), Span(16, 16), Span(31, 1), Span(15, 17)],
    "decode only, far apart in length": [Span(n, 1) for n in (0, 1, 500, 3, 130, 60, 499, 15)],
    "a long chunk after a long context": [Span(300, 530), Span(7, 1)],
    "a long chunk after nothing": [Span(0, 530), Span(0, 2), Span(12, 1)],
}
MOST_INTERPRETED = 200
"""New tokens of a sequence: an interpreter's largest tile has 128 keys, and 64 rows."""
SMALL = Shape(num_heads=2, num_kv_heads=1)
REACHES = {
    "full": SMALL,
    **{f"window {reach}": replace(SMALL, window_size=reach) for reach in (1, 16, 200)},
    **{f"chunks of {reach}": replace(SMALL, chunk_size=reach) for reach in (1, 16, 200, 400)},
}


def bearable(name: AttentionBackendName, spans: list[Span]) -> list[Span]:
    """`spans`, where a chunk is no longer than an interpreter needs to have several tiles."""
    if name in FAST:
        return spans
    return [span._replace(num_new=min(span.num_new, MOST_INTERPRETED)) for span in spans]


@long_but_for(IN_EVERY_RUN, "name", REGISTERED)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("spans", EXAMPLES.values(), ids=EXAMPLES)
def test_shapes_that_have_edges(
    name: AttentionBackendName, backend: Backend, spans: list[Span], reach: str
) -> None:
    assert_right(backend, Scene(REACHES[reach], bearable(name, spans)))


@long_but_for(IN_EVERY_RUN, "name", REGISTERED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "example", ["decode only, far apart in length", "a long chunk after nothing"]
)
def test_every_kind_of_layer_at_the_edges(
    name: AttentionBackendName, backend: Backend, kind: str, example: str
) -> None:
    assert_right(backend, Scene(KINDS[kind], bearable(name, EXAMPLES[example])))


@pytest.mark.parametrize(
    "shape", [Shape(window_size=3), Shape(chunk_size=3)], ids=["window", "chunk"]
)
@pytest.mark.parametrize("num_past", [0, 5])
def test_one_chunk_over_many_windows_gets_every_token_right(
    backend: Backend, num_past: int, shape: Shape
) -> None:
    """Its first queries need what would be overwritten if blocks were used again too early."""
    scene = Scene(replace(shape, block_size=2), [Span(num_past, 300), Span(4, 1)])
    assert_right(backend, scene)


@cases(40)
@pytest.mark.parametrize("name", FAST)
@given(shapes, spans)
def test_a_sequence_gets_the_same_alone_and_in_company(
    name: AttentionBackendName, shape: Shape, spans: list[Span]
) -> None:
    assert_same_in_company(backend_of(name), shape, spans)


def assert_same_in_company(backend: Backend, shape: Shape, spans: list[Span]) -> None:
    scene = Scene(replace(shape, dtype=torch.float32), spans)
    paging = scene.paging(1)
    together = scene.run(backend, paging, scene.store(paging))
    alone: list[Tensor] = []
    for sequence in scene.sequences:
        solo = _solo(scene, sequence)
        paging = solo.paging(2)
        alone.append(solo.run(backend, paging, solo.store(paging)))
    assert_both_right(together, torch.cat(alone), scene)


@cases(40)
@pytest.mark.parametrize("name", FAST)
@given(shapes, st.lists(st.integers(1, 30), min_size=2, max_size=5))
@example(WIDE, [1, 1, 4])  # more than 1e-6 apart where products of bfloat16 are, but no tiles
def test_a_prompt_gets_the_same_however_it_is_cut(
    name: AttentionBackendName, shape: Shape, sizes: list[int]
) -> None:
    assert_same_however_cut(backend_of(name), shape, sizes)


def assert_same_however_cut(backend: Backend, shape: Shape, sizes: list[int]) -> None:
    """To the bit in the store, where K and V are quantised too."""
    whole = Scene(replace(shape, dtype=torch.float32), [Span(0, sum(sizes))])
    (sequence,) = whole.sequences
    paging = whole.paging()
    store, pieces_store = whole.store(paging), whole.store(paging)
    at_once = whole.run(backend, paging, store)
    pieces, past = [], 0
    for size in sizes:
        end = past + size
        piece = _solo(
            whole,
            Sequence(
                Span(past, size), sequence.query[past:end], sequence.key[:end], sequence.value[:end]
            ),
        )
        pieces.append(piece.run(backend, paging, pieces_store))
        past = end
    assert_both_right(torch.cat(pieces), at_once, whole)
    for one, other in zip(store.tensors, pieces_store.tensors, strict=True):
        assert torch.equal(one.nan_to_num(-1.0), other.nan_to_num(-1.0))


def _solo(scene: Scene, sequence: Sequence) -> Scene:
    solo = Scene(scene.shape, [])
    solo.sequences, solo.sinks = [sequence], scene.sinks
    return solo


@pytest.mark.parametrize("kind", KINDS)
def test_new_keys_and_values_land_in_their_slots_and_nowhere_else(
    backend: Backend, kind: str
) -> None:
    scene = Scene(replace(KINDS[kind], block_size=4), [Span(0, 7), Span(5, 1)])
    paging = scene.paging()
    store, untouched = scene.store(paging), scene.store(paging)
    scene.run(backend, paging, store)
    new = [(s.key[s.span.num_past :], s.value[s.span.num_past :]) for s in scene.sequences]
    keys, values = (torch.cat(parts) for parts in zip(*new, strict=True))
    slots: list[int] = scene.batch(paging).slots[scene.table].tolist()
    seen_as = store.keys[scene.place].elements.data_ptr()
    for place in range(len(store.keys)):
        if place != scene.place and store.keys[place].elements.data_ptr() == seen_as:
            continue  # the same memory, as layers of another form see it
        mine = slots if place == scene.place else []
        assert_written(store.keys[place], untouched.keys[place], mine, store.codec.encode(keys))
        kept, before = store.values[place], untouched.values[place]
        assert (kept is None) == scene.layer.is_latent
        if kept is not None and before is not None:
            assert_written(kept, before, mine, store.codec.encode(values))


def test_sinks_must_be_there_just_if_the_layer_has_them(backend: Backend) -> None:
    scene = Scene(Shape(has_sinks=True), [Span(0, 3)])
    scene.sinks = None
    paging = scene.paging()
    with pytest.raises(ValueError, match="layer 1 has sinks: True, given: False"):
        scene.run(backend, paging, scene.store(paging))


def assert_encoded(backend: Backend, kept_as: KVCacheDtype, key: Tensor) -> None:
    """`key` [2, 1, width] is written as the codec has it, to the bit; where not all is finite, it
    reads as no number is."""
    width = key.shape[-1]
    scene = Scene(Shape(1, 1, width, width, kept_as=kept_as, dtype=key.dtype), [Span(0, 2)])
    paging = scene.paging()
    store = scene.store(paging)
    query, _, value = scene.inputs()
    step = backend(store).begin(scene.batch(paging))
    step.attend(scene.layer, torch.zeros_like(query), key, value)
    wanted = store.codec.encode(key)
    kept, scales = store.keys[scene.place]
    assert scales is not None and wanted.scales is not None
    for token in range(2):
        slot = paging.slot(0, token, scene.table)
        stored = EncodedKV(look(kept, slot), look(scales, slot))
        if key[token].isfinite().all():
            assert torch.equal(stored.elements, wanted.elements[token])
            assert torch.equal(look(scales, slot), wanted.scales[token])
        else:
            read = store.codec.decode(stored, torch.empty_like(key[token]))
            assert not read.isfinite().any()


def assert_written(kept: EncodedKV, before: EncodedKV, slots: list[int], new: EncodedKV) -> None:
    """`kept` is what it was `before`, but for `new` in `slots`."""
    for tensor, old, written in zip(kept, before, new, strict=True):
        if tensor is None or old is None or written is None:
            continue
        for slot in range(tensor.shape[0] * tensor.shape[1]):
            wanted = written[slots.index(slot)] if slot in slots else look(old, slot)
            torch.testing.assert_close(look(tensor, slot), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kept_as", KEPT_AS)
@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_layer_that_shares_writes_nothing_and_sees_what_its_source_wrote(
    backend: Backend, num_parts: int, kept_as: KVCacheDtype
) -> None:
    shape = Shape(window_size=8, num_parts=num_parts, kept_as=kept_as, shares=True, block_size=4)
    spans = [Span(40, 3), Span(50, 1), Span(0, 30)]
    source, scene = (Scene(replace(shape, index=index), spans, seed=1) for index in (1, 2))
    assert (scene.table, scene.place) == (source.table, source.place)
    paging = scene.paging()
    store = scene.store(paging)
    before = [tensor.clone() for tensor in store.tensors]
    scene.run(backend, paging, store)
    for kept, was in zip(store.tensors, before, strict=True):
        assert torch.equal(kept.nan_to_num(-1.0), was.nan_to_num(-1.0))
    step = backend(store).begin(scene.batch(paging))
    for each in (source, scene):
        assert_close(each.attend(step), each)


@pytest.mark.parametrize("kept_as", KEPT_AS)
@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize(
    "shape",
    [Shape(window_size=8), Shape(chunk_size=8), Shape(num_kv_heads=1, window_size=8, num_parts=2)],
    ids=["window", "chunk", "parts"],
)
def test_layers_of_one_step_may_differ_in_what_they_see_and_where(
    backend: Backend, shape: Shape, hybrid: bool, kept_as: KVCacheDtype
) -> None:
    """In groups with tables of their own, or all in one."""
    shape = replace(shape, hybrid=hybrid, kept_as=kept_as, block_size=4)
    spans = [Span(40, 3), Span(50, 1), Span(0, 30)]
    wide, narrow, alike = (
        Scene(replace(shape, index=index), spans, seed=index) for index in range(3)
    )
    assert len(wide.layout.tables) == (3 if hybrid else 1)
    paging = wide.paging()
    store = wide.store(paging)
    narrow.fill(store, paging)
    alike.fill(store, paging)
    step = backend(store).begin(wide.batch(paging))
    for scene in (wide, narrow, alike, wide):
        assert_close(scene.attend(step), scene)
