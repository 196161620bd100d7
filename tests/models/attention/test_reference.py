"""The reference backend's own: tiles and pieces of any size, what it calls, what it allocates."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from quire.models.attention import plan, softmax
from quire.models.attention.plan import QUERY_TILE, mask_width
from quire.models.attention.reference import ReferenceAttention
from quire.models.attention.scratch import StepKind, StepLimits, scratch_bytes
from quire.models.config import KVCacheDtype, LayerFacts
from tests.allocation import peak_bytes
from tests.models.attention.cases import KINDS, shapes, spans
from tests.models.attention.scene import Scene, Shape, Span
from tests.models.attention.test_backends import assert_right
from tests.profiles import cases

KERNEL_BYTES = 2**21
"""What a fused kernel may keep for itself on one thread, and a profiler's dust."""


@cases(100)
@given(shapes, spans, st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([1, 50, 3000]))
def test_tiles_and_pieces_may_be_of_any_size(
    shape: Shape, spans: list[Span], seed: int, tile: int, num_scores: int
) -> None:
    with (
        mock.patch.object(plan, "QUERY_TILE", tile),
        mock.patch.dict(softmax.MAX_SCORES, cpu=num_scores),
    ):
        assert_right(ReferenceAttention, Scene(shape, spans, seed), seed)


@torch.no_grad()
def second_layer_calls(shape: Shape, spans: list[Span]) -> Counter[str]:
    """What runs within a layer whose plan is there."""
    scene = Scene(shape, spans)
    paging = scene.paging()
    step = ReferenceAttention(scene.store(paging)).begin(scene.batch(paging))
    scene.attend(step)
    inputs = scene.inputs()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step.attend(scene.layer, *inputs, scene.sinks)
    return Counter(event.name.removeprefix("aten::") for event in profiler.events())


FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def test_a_plain_decode_writes_gathers_and_attends_once() -> None:
    """Keys and values each; and copies nothing besides."""
    calls = second_layer_calls(Shape(), [Span(40, 1), Span(37, 1)])
    assert calls["index_copy_"] == calls["index_select"] == 2
    assert calls["scaled_dot_product_attention"] == calls[FLASH] == 1
    assert calls["copy_"] == calls["clone"] == calls["contiguous"] == calls["constant_pad_nd"] == 0


def test_a_plain_prefill_gathers_nothing() -> None:
    calls = second_layer_calls(Shape(), [Span(0, 40)])
    assert calls["index_select"] == 0
    assert calls["scaled_dot_product_attention"] == calls[FLASH] == 1
    assert calls["copy_"] == 1


@pytest.mark.parametrize("kind", ["latent", "wide keys", "wide values"])
@pytest.mark.parametrize("spans", [[Span(40, 1)], [Span(40, 20)]], ids=["decode", "chunk"])
def test_unequal_widths_are_attended_by_a_fused_kernel_too(kind: str, spans: list[Span]) -> None:
    assert second_layer_calls(KINDS[kind], spans)[FLASH] == 1


@torch.inference_mode()
def measured(scenes: list[Scene], trace: Path) -> int:
    """One step through all of `scenes`, one for each layer, over zeros."""
    paging = scenes[0].paging()
    backend = ReferenceAttention(scenes[0].empty_store(paging))
    batch = scenes[0].batch(paging)

    def step() -> None:
        running = backend.begin(batch)
        for scene in scenes:
            scene.attend(running)

    return peak_bytes(step, trace)


def activation_bytes(scene: Scene) -> int:
    """The step's inputs, outputs and tiles of them, in float32 at the dearest."""
    shape = scene.shape
    num_tokens = sum(sequence.span.num_new for sequence in scene.sequences)
    widths = shape.num_heads + 2 * shape.num_kv_heads
    return 6 * 4 * num_tokens * widths * max(shape.head_dim, shape.v_head_size)


def bound(layers: Sequence[LayerFacts], shape: Shape, spans: list[Span]) -> int:
    return scratch_bytes(
        layers,
        StepLimits(
            max_model_len=max(sum(span) for span in spans),
            max_num_seqs=len(spans),
            max_num_batched_tokens=sum(span.num_new for span in spans),
        ),
        StepKind(
            dtype=shape.dtype,
            is_quantised=shape.codec.is_quantised,
            is_eager=False,
            device_type="cpu",
        ),
    )


longer_spans = st.lists(
    st.builds(Span, st.integers(0, 1500), st.one_of(st.just(1), st.integers(1, 300))),
    min_size=1,
    max_size=5,
)


SINKS = Shape(num_heads=24, num_kv_heads=3, head_dim=32, v_head_size=32, has_sinks=True)
WIDE_FLOAT16 = Shape(head_dim=256, v_head_size=256, kept_as=KVCacheDtype.INT8, dtype=torch.float16)


@settings(cases(12), suppress_health_check=list(HealthCheck))
@given(shapes, longer_spans)
@example(SINKS, [Span(1500, 300)])  # scores of more than one piece
@example(WIDE_FLOAT16, [Span(1364, 1)] * 3)  # decoded in float32, twice
def test_a_step_allocates_no_more_than_scratch_says(
    tmp_path_factory: pytest.TempPathFactory, shape: Shape, spans: list[Span]
) -> None:
    scenes = [Scene(replace(shape, index=index), spans) for index in range(3)]
    taken = measured(scenes, tmp_path_factory.mktemp("trace") / "memory.json")
    assert taken <= bound(shape.layers, shape, spans) + activation_bytes(scenes[0]) + KERNEL_BYTES


def test_masks_are_counted_once_for_each_window_and_not_for_each_layer() -> None:
    full = LayerFacts(0, num_kv_heads=2, head_size=64, v_head_size=64, scale=1.0)
    window = replace(full, index=1, window_size=256)
    limits = StepLimits(max_model_len=4096, max_num_seqs=8, max_num_batched_tokens=512)
    kind = StepKind(torch.float32, is_quantised=False, is_eager=False, device_type="cpu")
    alone = scratch_bytes([full], limits, kind)
    slots, padding = 8 * (8 * 255 + 512), 4 * 8 * 256
    mask = 4 * QUERY_TILE * mask_width(window.pattern, limits.max_model_len)
    assert scratch_bytes([full, window], limits, kind) == alone + slots + padding + mask
    assert scratch_bytes([full, replace(full, index=1)], limits, kind) == alone


WORST = {
    "decode": [Span(1535, 1)] * 20,
    "one long chunk": [Span(5000, 600)],
}


@pytest.mark.parametrize("spans", WORST.values(), ids=WORST)
@pytest.mark.parametrize("kind", KINDS)
def test_scratch_is_not_far_above_the_worst_step(
    kind: str, spans: list[Span], tmp_path: Path
) -> None:
    shape = replace(KINDS[kind], index=0, hybrid=False, window_size=None, chunk_size=None)
    if shape.head_dim == shape.v_head_size:
        shape = replace(shape, head_dim=128, v_head_size=128)
    else:
        shape = replace(shape, head_dim=4 * shape.head_dim, v_head_size=4 * shape.v_head_size)
    scene = Scene(shape, spans)
    taken = measured([scene], tmp_path / "memory.json")
    most = bound(shape.layers[:1], shape, spans)
    assert taken <= most + activation_bytes(scene) + KERNEL_BYTES
    assert most <= 4 * taken
