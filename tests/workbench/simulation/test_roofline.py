"""The time of a step: by hand where it is simple, and never less for more work."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.models.shape import AttentionShape, ExpertShape, ModelShape
from quire.scheduler.pacing.step_work import StepWork
from quire.workbench.simulation.cost.devices import DeviceError, DeviceKind, DeviceSpec
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.cost.linearised import coefficients_of
from quire.workbench.simulation.cost.roofline import Roofline, num_experts_met

WINDOW = 64
FULL_LAYERS = AttentionShape(4, 8, 16, 16, 512, FULL)
WINDOWED = dataclasses.replace(FULL_LAYERS, pattern=AttentionPattern(AttentionType.SLIDING, WINDOW))
DENSE = ModelShape(
    num_layers=4,
    hidden_size=128,
    vocab_size=1000,
    dtype="bfloat16",
    dtype_bytes=2,
    num_dense_weights=1_000_000,
    num_head_weights=128_000,
    num_operands=10_000,
    dense_bytes=2_000_000,
    head_bytes=256_000,
    attention=(FULL_LAYERS,),
)
SPARSE = dataclasses.replace(
    DENSE, experts=(ExpertShape(4, 16, 2, 50_000),), expert_weight_bytes=2.0
)
DEVICE = DeviceSpec(
    name="a device",
    kind=DeviceKind.CUDA,
    memory_bytes=1 << 30,
    bandwidth_bytes_s=1e9,
    flops_s={"bfloat16": 1e12},
)
SLOW = DeviceSpec(
    name="one that computes slowly",
    kind=DeviceKind.CUDA,
    memory_bytes=1 << 30,
    bandwidth_bytes_s=1e15,
    flops_s={"bfloat16": 1e9},
)
SHAPES = st.sampled_from(
    [DENSE, SPARSE, dataclasses.replace(SPARSE, attention=(FULL_LAYERS, WINDOWED))]
)


@st.composite
def works(draw: st.DrawFn) -> StepWork:
    decode, prompts = draw(st.integers(0, 64)), draw(st.integers(0, 4))
    prefill = draw(st.integers(prompts, 2048)) if prompts else 0
    context = draw(st.integers(decode, decode * 4096)) if decode else 0
    return StepWork(decode + prompts, prefill, decode, context, prefill * (prefill + 1) // 2)


def decoding(num_seqs: int, context: int) -> StepWork:
    return StepWork(num_seqs, 0, num_seqs, num_seqs * context)


@given(SHAPES, works(), st.sampled_from(["prefill", "decode", "context", "pairs"]))
def test_more_work_never_takes_less(shape: ModelShape, work: StepWork, kind: str) -> None:
    more = {
        "prefill": dataclasses.replace(work, num_prefill_tokens=work.num_prefill_tokens + 1),
        "decode": dataclasses.replace(
            work,
            num_seqs=work.num_seqs + 1,
            num_decode_tokens=work.num_decode_tokens + 1,
            num_context_tokens=work.num_context_tokens
            + max(work.num_context_tokens // max(work.num_decode_tokens, 1), 1),
        ),
        "context": dataclasses.replace(work, num_context_tokens=work.num_context_tokens + 1),
        "pairs": dataclasses.replace(work, num_prefill_pairs=work.num_prefill_pairs + 1),
    }
    for device in (DEVICE, SLOW):
        cost = Roofline(shape, device)
        assert cost.step_s(more[kind]) >= cost.step_s(work) * (1 - 1e-12) > 0


def test_one_token_reads_all_weights_and_its_context() -> None:
    """2,256,000 bytes of weights, 20,000 of activations, and 512 bytes in 4 layers for 100 tokens,
    at a gigabyte a second."""
    took = Roofline(DENSE, DEVICE).step_s(decoding(1, 100))
    assert took == pytest.approx((2_256_000 + 20_000 + 4 * 512 * 100) / 1e9)


def test_many_tokens_compute() -> None:
    """Where reading costs nothing, two operations for each weight and token, and for each pair two
    for each element of a key and of a value, by 8 heads in 4 layers."""
    took = Roofline(DENSE, SLOW).step_s(StepWork(1, 100, 0, 0, 5050))
    operations = 2 * (100 * 1_000_000 + 128_000) + 4 * 2 * 32 * 8 * 5050
    assert took == pytest.approx(operations / 1e9, rel=1e-4)


def test_a_window_bounds_what_is_read() -> None:
    cost = Roofline(dataclasses.replace(DENSE, attention=(WINDOWED,)), DEVICE)
    short, long = (cost.step_s(decoding(8, each)) for each in (WINDOW, 100 * WINDOW))
    assert long == pytest.approx(short)
    assert short > cost.step_s(decoding(8, WINDOW // 2))


def test_overheads_are_added() -> None:
    slow = {"step_overhead_s": 1.0, "layer_overhead_s": 0.5, "seq_overhead_s": 0.25}
    fields = {name: getattr(DEVICE, name) for name in DEVICE.__struct_fields__}
    work = decoding(8, 10)
    more = Roofline(DENSE, DeviceSpec(**{**fields, **slow})).step_s(work)
    assert more - Roofline(DENSE, DEVICE).step_s(work) == pytest.approx(1.0 + 4 * 0.5 + 8 * 0.25)


@given(st.integers(1, 300), st.data())
def test_experts_met(num_experts: int, data: st.DataObject) -> None:
    """One token meets its own experts; more tokens meet more, and never more than there are."""
    experts = ExpertShape(1, num_experts, data.draw(st.integers(1, num_experts)), 1)
    met = [num_experts_met(experts, number) for number in (0, 1, 2, 50, 10_000)]
    assert met[0] == 0 and met[1] == pytest.approx(experts.top_k)
    assert met == sorted(met) and met[-1] <= num_experts


def test_a_dtype_without_a_rate_is_named() -> None:
    shape = dataclasses.replace(DENSE, dtype="float32")
    with pytest.raises(DeviceError, match="no flops_s of float32.*those of bfloat16"):
        Roofline(shape, DEVICE).step_s(decoding(1, 1))


@given(SHAPES, works(), st.booleans())
def test_coefficients_tell_what_the_roofline_tells(
    shape: ModelShape, work: StepWork, is_slow: bool
) -> None:
    """Without windows, and but for the head, which meets the rows that are sampled alone: the
    coefficients charge it where products are slower than reading."""
    device = SLOW if is_slow else DEVICE
    full = dataclasses.replace(shape, attention=(FULL_LAYERS,), num_head_weights=0)
    true_s = Roofline(full, device).step_s(work)
    told_s = FittedCost(coefficients_of(Roofline(full, device))).step_s(work)
    assert told_s == pytest.approx(true_s, rel=0.05)
