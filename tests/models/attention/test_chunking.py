"""A row of the C++ attention has the same bits however its sequence is cut into chunks, whatever
runs beside it, and on any number of threads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.attention.cpu import CPUAttention, CPUStep
from quire.models.batch import Batch
from quire.models.kv.kv_store import KVStore
from quire.models.native import Library
from quire.models.native.library import ISAS
from tests.instructions import library_of
from tests.models.attention.cases import shapes
from tests.models.attention.scene import Backend, Scene, Shape, Span
from tests.profiles import cases

LENGTH = 600
"""Tokens of the sequence: more than two of the 256 keys that are added up by themselves."""
TILED_GROUP = 3
"""With AMX tiles attend to all rows of as many query heads a KV head or more."""

supported = shapes.filter(lambda shape: shape.dtype is not torch.float16)
sizes = st.lists(st.sampled_from([1, 1, 2, 7, 8, 9, 33, 64, 200, 300]), max_size=12)
company = st.lists(st.builds(Span, st.integers(0, 700), st.sampled_from([1, 1, 5, 80])), max_size=3)


@pytest.fixture(scope="module", params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Library:
    return library_of(request.param)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run_chunks(
    backend: Backend, whole: Scene, chunk_sizes: Sequence[int], beside: Sequence[Span]
) -> Tensor:
    """Return the output of `whole`, one sequence without a past, computed in chunks of these sizes.

    Each step has one chunk, between the sequences that `beside` describes.
    """
    (sequence,) = whole.sequences
    scene = Scene(whole.shape, [*beside[:1], sequence.span, *beside[1:]], seed=1)
    scene.sinks = whole.sinks
    place = len(beside[:1])
    first_row = sum(span.num_new for span in beside[:1])
    paging, steps, first = scene.paging(), [], 0
    store = scene.empty_store(paging)
    for tensor in store.tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() else 77)
    for size in chunk_sizes:
        end = first + size
        scene.sequences[place] = sequence._replace(
            span=Span(first, size),
            query=sequence.query[first:end],
            key=sequence.key[:end],
            value=sequence.value[:end],
        )
        if first == 0:
            scene.fill(store, paging)
        steps.append(scene.run(backend, paging, store)[first_row : first_row + size].clone())
        first = end
    return torch.cat(steps)


def chunks_of(chunk_sizes: Sequence[int], least: int) -> list[int]:
    """Return chunks of LENGTH tokens that begin with these, none of them of fewer than `least`."""
    out: list[int] = []
    for size in chunk_sizes:
        if sum(out) + size <= LENGTH - least:
            out.append(max(size, least))
    return [*out, LENGTH - sum(out)]


def assert_same_bits(out: Tensor, expected: Tensor) -> None:
    rows = (out.view(torch.uint8) != expected.view(torch.uint8)).flatten(1).any(1)
    assert not rows.any(), f"other bits in rows {rows.nonzero().flatten().tolist()}"


@cases(30)
@given(shape=supported, chunk_sizes=sizes, beside=company, threads=st.integers(1, 3))
def test_row_has_the_same_bits_in_any_chunk_and_company(
    kernels: Library, shape: Shape, chunk_sizes: list[int], beside: list[Span], threads: int
) -> None:
    """With AMX vectors attend to single rows of few heads, otherwise than tiles: docs/limits.md."""
    backend = partial(CPUAttention, library=kernels)
    group = shape.num_heads // shape.num_kv_heads
    is_by_vectors = kernels.isa == "amx" and shape.dtype is torch.bfloat16 and group < TILED_GROUP
    whole = Scene(shape, [Span(0, LENGTH)])
    torch.set_num_threads(1)
    expected = run_chunks(backend, whole, [LENGTH], [])
    torch.set_num_threads(threads)
    chunks = chunks_of(chunk_sizes, 2 if is_by_vectors else 1)
    assert_same_bits(run_chunks(backend, whole, chunks, beside), expected)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("left", [1, 2, 8, 9])
def test_rows_left_after_cached_blocks_have_the_bits_of_one_prefill(
    kernels: Library, group: int, dtype: torch.dtype, left: int
) -> None:
    """Up to 8 rows are computed over keys and values where they lie, more over packed ones."""
    if kernels.isa == "amx" and dtype is torch.bfloat16 and left == 1 and group < TILED_GROUP:
        pytest.skip("tiles round a row of one query otherwise: docs/limits.md")
    backend = partial(CPUAttention, library=kernels)
    whole = Scene(Shape(group, 1, 64, 64, dtype=dtype, index=0), [Span(0, LENGTH)])
    expected = run_chunks(backend, whole, [LENGTH], [])
    assert_same_bits(run_chunks(backend, whole, [LENGTH - left, left], []), expected)


@dataclass(frozen=True, slots=True)
class BackendByRows:
    """The planted fault: another instruction set, which rounds otherwise, computes few rows."""

    few: CPUAttention
    many: CPUAttention

    def begin(self, batch: Batch) -> CPUStep:
        return (self.few if len(batch.positions) <= 8 else self.many).begin(batch)


def test_arithmetic_that_depends_on_the_chunk_is_seen() -> None:
    portable, other = library_of("portable"), library_of("avx2")
    whole = Scene(Shape(7, 1, 64, 64, dtype=torch.bfloat16, index=0), [Span(0, LENGTH)])

    def backend(store: KVStore) -> BackendByRows:
        return BackendByRows(CPUAttention(store, portable), CPUAttention(store, other))

    expected = run_chunks(backend, whole, [LENGTH], [])
    assert_same_bits(run_chunks(backend, whole, [LENGTH - 9, 9], []), expected)
    with pytest.raises(AssertionError, match="other bits in rows"):
        assert_same_bits(run_chunks(backend, whole, [LENGTH - 8, 8], []), expected)
