"""FlashInfer's attention of plain layers against float64, launched and replayed, where it is
installed. A rehearsal has a stand-in of its API."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import torch
from tests.models.attention.flashinfer_stand_in import KernelScene, Machine, installed
from tests.models.attention.scene import Scene, Shape, Span
from tests.models.graphs.device import StandInDevice
from tests.models.paging import Paging
from torch import Tensor

from bench.gpu.check import Finding, Place
from quire.models.attention.backend import Site
from quire.models.attention.choice import attention_name, build_attention, registered
from quire.models.attention.flashinfer.backend import FlashInferAttention
from quire.models.config import AttentionBackendName
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.capture import GraphRecorder
from quire.models.graphs.cuda import CUDADevice
from quire.models.kv.kv_store import KVStore

FLASHINFER = AttentionBackendName.FLASHINFER
DTYPES = (torch.bfloat16, torch.float16)
PLAIN = Shape(num_heads=8, num_kv_heads=2, head_dim=64, v_head_size=64)
WIDTHS = {
    "64": PLAIN,
    "128": replace(PLAIN, num_heads=32, num_kv_heads=8, head_dim=128, v_head_size=128),
    "128, own K and V": replace(PLAIN, num_heads=4, num_kv_heads=4, head_dim=128, v_head_size=128),
    "256": replace(PLAIN, head_dim=256, v_head_size=256),
}
VARIANTS: dict[str, Callable[[Shape], Shape]] = {
    "full": lambda shape: shape,
    "window": lambda shape: replace(shape, window_size=100),
    "window, cap": lambda shape: replace(shape, window_size=300, softcap=30.0),
}
SPANS = {
    "decode": [Span(length, 1) for length in (0, 1, 700, 15, 16, 130, 3000)],
    "prompts": [Span(0, 700), Span(0, 16), Span(0, 33)],
    "mixed": [Span(0, 130), Span(700, 1), Span(300, 17), Span(0, 1), Span(31, 33)],
}
REHEARSED_SPANS = {"mixed": [Span(0, 20), Span(110, 1), Span(17, 3), Span(0, 1)]}
REPLAYED = (
    [Span(length, 1) for length in (700, 3, 40, 130, 15)],
    [Span(length, 1) for length in (2000, 16, 1)],
    [Span(length, 1) for length in (5, 300, 31, 32, 900, 0, 47)],
)
REHEARSED_REPLAYS = ([Span(length, 1) for length in (40, 3)], [Span(130, 1), Span(15, 1)])
MAX_SEQS = 8


@torch.inference_mode()
def check_flashinfer(place: Place) -> Iterator[Finding]:
    """Check every width with every kind of layer, or say why it cannot be had."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # new tensors are NaN
    with installed(Machine()) if place.is_rehearsal else nullcontext():
        why = registered(FLASHINFER).why_not(_site(PLAIN, place))
        if why is not None:
            yield Finding("flashinfer", {"not_run": why})
            return
        for name, shape in _shapes(place).items():
            yield from _check(name, replace(shape, device=str(place.device)), place)


def _shapes(place: Place) -> dict[str, Shape]:
    widths = {"64": PLAIN} if place.is_rehearsal else WIDTHS
    dtypes = DTYPES[:1] if place.is_rehearsal else DTYPES
    return {
        f"{width}, {kind}, {str(dtype).removeprefix('torch.')}": variant(
            replace(shape, dtype=dtype)
        )
        for width, shape in widths.items()
        for kind, variant in VARIANTS.items()
        for dtype in dtypes
    }


def _site(shape: Shape, place: Place) -> Site:
    codec = replace(shape, dtype=DTYPES[0]).codec
    return Site(place.device, codec, shape.head_dim, shape.head_dim, layers=shape.layers)


def _check(name: str, shape: Shape, place: Place) -> Iterator[Finding]:
    site = _site(shape, place)._replace(codec=shape.codec)
    computed_by = attention_name(FLASHINFER, site)
    for kind, spans in (REHEARSED_SPANS if place.is_rehearsal else SPANS).items():
        scene = KernelScene(shape, spans)
        paging = scene.paging()
        out = scene.run(_build, paging, scene.store(paging))
        yield judged(f"{name}, {kind}", out, scene, computed_by)
    if computed_by == str(FLASHINFER):
        yield from _check_replays(name, shape, place)


def _check_replays(name: str, shape: Shape, place: Place) -> Iterator[Finding]:
    """Capture one layer's step, and replay it for other sequences in the same tensors."""
    all_spans = REHEARSED_REPLAYS if place.is_rehearsal else REPLAYED
    scenes = [KernelScene(shape, spans, seed) for seed, spans in enumerate(all_spans)]
    longest = max(sum(span) for spans in all_spans for span in spans)
    paging = Paging(
        MAX_SEQS, longest, block_size=shape.block_size, num_groups=len(scenes[0].layout.groups)
    ).on(shape.device)
    store = scenes[0].store(paging)
    backend = _build(store)
    assert isinstance(backend, FlashInferAttention)
    columns = len(paging.tables[0][0])
    limits = DecodeLimits(MAX_SEQS, longest, columns, len(paging.tables))
    replayed = _Replayed(backend, Buffers(limits, place.device), scenes[0], place)
    for number, scene in enumerate(scenes):
        scene.fill(store, paging)
        found = replayed.run(scene, paging)
        yield judged(f"{name}, replay {number + 1}", found, scene, str(FLASHINFER))


class _Replayed:
    """A captured step of one layer."""

    def __init__(
        self, backend: FlashInferAttention, buffers: Buffers, like: Scene, place: Place
    ) -> None:
        self._backend = backend
        self._buffers = buffers
        self._inputs = [
            each.new_zeros(MAX_SEQS, *each.shape[1:]) for each in like.inputs()
        ]  # query, key, value
        self._out = torch.zeros_like(self._inputs[0])
        self._layer = like.layer
        device = CUDADevice(place.device) if place.device.type == "cuda" else StandInDevice()
        recorder = GraphRecorder(device)
        recorder.check(self._compute)
        self._replay = recorder.capture(self._compute)

    def run(self, scene: Scene, paging: Paging) -> Tensor:
        count, batch = len(scene.sequences), scene.batch(paging)
        for kept, new in zip(self._inputs, scene.inputs(), strict=True):
            kept[:count] = new
        self._buffers.fill(batch, MAX_SEQS)
        self._backend.plan_replay(MAX_SEQS, batch)
        self._replay()
        return self._out[:count].clone()

    def _compute(self) -> None:
        step = self._backend.over(self._buffers.inputs(MAX_SEQS))
        self._out.copy_(step.attend(self._layer, *self._inputs))


def _build(store: KVStore) -> FlashInferAttention:
    built = build_attention(store, FLASHINFER)
    assert isinstance(built, FlashInferAttention)
    return built


def judged(what: str, out: Tensor, scene: Scene, computed_by: str) -> Finding:
    """Return what was found of a scene's output, by the worst of its numbers."""
    exact = scene.expected()
    worst = float(((out.double() - exact.value).abs() / exact.error).nan_to_num(torch.inf).max())
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(what, {"of_allowed_error": worst, "computed_by": computed_by}, fault)
