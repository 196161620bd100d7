"""The C++ kernel's own: instruction sets that run here, threads, bounds, scratch."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from quire.models.attention.backend import AttentionSetup
from quire.models.attention.choice import attention_name, build_attention
from quire.models.attention.cpu import CPUAttention, cpu_scratch_bytes
from quire.models.attention.scratch import StepLimits
from quire.models.config import AttentionBackendName, KVCacheDtype
from quire.models.kv.kv_codec import EncodedKV, choose_codec
from quire.models.kv.kv_store import GatherWorkspace
from quire.models.native import Library
from quire.models.native.library import ISAS
from tests.instructions import built_library, library_of
from tests.models.attention.cases import KEPT_AS, keys_of_any_bits, shapes, spans
from tests.models.attention.exact import LEAST
from tests.models.attention.scene import Scene, Shape, Span, put
from tests.models.attention.test_backends import assert_encoded, assert_right
from tests.models.rounding import Exact, assert_within, unit
from tests.profiles import cases
from tests.rounding import compounded

supported = shapes.filter(lambda shape: shape.dtype is not torch.float16)
long_spans = st.lists(
    st.builds(Span, st.integers(0, 1500), st.sampled_from([1, 1, 2, 70])), min_size=1, max_size=3
)


@pytest.fixture(scope="module")
def kernels() -> Library:
    return built_library()


@pytest.fixture(scope="module", params=ISAS)
def each_isa(request: pytest.FixtureRequest) -> Library:
    isa: str = request.param
    return library_of(isa)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@cases(60)
@given(shape=supported, spans=spans, seed=st.integers(0, 2**32))
def test_every_instruction_set_agrees_with_softmax_by_hand(
    each_isa: Library, shape: Shape, spans: list[Span], seed: int
) -> None:
    assert_right(partial(CPUAttention, library=each_isa), Scene(shape, spans, seed), seed)


@pytest.mark.usefixtures("two_threads")
@cases(12)
@given(shape=supported, spans=long_spans)
def test_contexts_cut_among_threads_come_together_again(
    kernels: Library, shape: Shape, spans: list[Span]
) -> None:
    assert_right(partial(CPUAttention, library=kernels), Scene(shape, spans))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kept_as", KEPT_AS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@cases(60)
@given(data=st.data())
def test_what_is_written_is_what_the_codec_makes_of_it(
    each_isa: Library, dtype: torch.dtype, kept_as: KVCacheDtype, data: st.DataObject
) -> None:
    key = data.draw(keys_of_any_bits(dtype))
    assert_encoded(partial(CPUAttention, library=each_isa), kept_as, key)


@pytest.mark.parametrize("kept_as", KEPT_AS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1.0, 0.37, 1e-20])
def test_every_byte_is_read_as_the_codec_reads_it(
    each_isa: Library, dtype: torch.dtype, kept_as: KVCacheDtype, scale: float
) -> None:
    """A past token that outweighs the new one by far: what comes out is its value, times an
    exponential, six units of float32, and over a sum, four; in 16 bits nothing of that is left."""
    numbers = torch.arange(285).to(torch.int8)
    if kept_as is KVCacheDtype.FP8_E4M3:
        numbers[(numbers == 127) | (numbers == -1)] = 0  # no numbers
    scene = Scene(Shape(1, 1, 32, len(numbers), kept_as=kept_as, dtype=dtype), [Span(1, 1)])
    paging = scene.paging()
    store = scene.store(paging)
    slot = paging.slot(0, 0, scene.table)
    scales = torch.tensor([scale], dtype=torch.bfloat16)
    kept = EncodedKV(numbers[None], scales)
    values = store.values[scene.place]
    assert values is not None
    put(values, [slot], EncodedKV(kept.elements[None], scales[None]))
    keys = store.codec.encode(torch.full((1, 1, 32), 100, dtype=dtype))
    put(store.keys[scene.place], [slot], keys)
    step = CPUAttention(store, each_isa).begin(scene.batch(paging))
    query, key, value = scene.inputs()
    out = step.attend(scene.layer, torch.ones_like(query), torch.zeros_like(key), value)
    wanted = store.codec.decode(kept, torch.empty_like(value[0]))
    relative = compounded(10, unit(torch.float32)) if dtype is torch.float32 else 0.0
    assert_within(out[0], Exact(wanted.double(), relative * wanted.double().abs() + LEAST))


@pytest.mark.usefixtures("two_threads")
@cases(30)
@given(shape=supported, spans=long_spans)
@example(shape=Shape(1, 1, 256), spans=[Span(0, 1)])  # wide: what each thread keeps is nearly all
@example(shape=Shape(1, 1), spans=[Span(1499, 1)] * 7)  # each just too long for one part
def test_scratch_is_no_more_than_counted(kernels: Library, shape: Shape, spans: list[Span]) -> None:
    scene, workspace = Scene(shape, spans), GatherWorkspace()
    paging = scene.paging()
    backend = CPUAttention(scene.store(paging), kernels, workspace)
    scene.attend(backend.begin(scene.batch(paging)))
    limits = StepLimits(2000, len(spans), sum(span.num_new for span in spans))
    taken = workspace.memory[torch.uint8].nbytes
    assert taken <= cpu_scratch_bytes([scene.layer], limits, shape.codec, kernels)


@pytest.mark.parametrize("block", [-1, 1000, 2**31 - 1])
def test_a_block_outside_the_store_is_refused_before_anything_is_written(
    kernels: Library, block: int
) -> None:
    scene = Scene(Shape(block_size=4), [Span(9, 1), Span(5, 3)])
    paging = scene.paging()
    store, batch = scene.store(paging), scene.batch(paging)
    batch.block_tables[scene.table][1][1] = block
    before = [tensor.clone() for tensor in store.tensors]
    with pytest.raises(IndexError, match="layer 1 lies outside its store"):
        scene.attend(CPUAttention(store, kernels).begin(batch))
    for kept, was in zip(store.tensors, before, strict=True):
        assert torch.equal(kept.nan_to_num(-1.0), was.nan_to_num(-1.0))


def test_a_slot_outside_the_store_is_refused(kernels: Library) -> None:
    scene = Scene(Shape(), [Span(9, 1)])
    paging = scene.paging()
    batch = scene.batch(paging)
    batch.slots[scene.table][0] = paging.num_blocks * scene.shape.block_size
    with pytest.raises(IndexError, match="outside its store"):
        scene.attend(CPUAttention(scene.store(paging), kernels).begin(batch))


def test_what_the_kernel_cannot_is_left_to_the_reference(kernels: Library) -> None:
    here = torch.device("cpu")
    for kept_as in (KVCacheDtype.AUTO, KVCacheDtype.INT8):
        wide, half = (choose_codec(kept_as, dtype) for dtype in (torch.bfloat16, torch.float16))
        assert (
            attention_name(AttentionBackendName.AUTO, AttentionSetup(here, wide, 64, 64))
            == f"cpu ({kernels.isa})"
        )
        assert (
            attention_name(AttentionBackendName.AUTO, AttentionSetup(here, half, 64, 64))
            == "reference"
        )
    scene = Scene(replace(Shape(), dtype=torch.float16), [Span(0, 1)])
    with pytest.raises(ValueError, match=r"cannot be had: it has no torch\.float16"):
        build_attention(scene.store(scene.paging()), AttentionBackendName.CPU)


def test_an_instruction_set_that_does_not_run_here_is_refused(kernels: Library) -> None:
    with pytest.raises(ValueError, match="sve9 does not run here"):
        kernels.of("sve9")
