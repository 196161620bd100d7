"""The Triton kernels' own: tiles and parts of any size, replayed steps, numbers to the bit, scratch
and where they can run. All under the interpreter; what they take of a GPU by compiling them.
"""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from quire.models.attention.backend import AttentionSetup
from quire.models.attention.choice import attention_name, build_attention
from quire.models.attention.scratch import StepLimits
from quire.models.attention.triton import tiles
from quire.models.attention.triton.inputs import StepBounds, step_inputs
from quire.models.attention.triton.scratch import triton_scratch_bytes
from quire.models.attention.triton.support import INTERPRETED
from quire.models.attention.triton.tiles import DeviceProperties, TileShape
from quire.models.config import AttentionBackendName, KVCacheDtype, KVOptions, KVSize
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import build_kv_store
from tests.allocation import peak_bytes
from tests.models.attention.cases import KEPT_AS, keys_of_any_bits, shapes, spans
from tests.models.attention.scene import Scene, Shape, Span, UnroundedScene
from tests.models.attention.test_backends import (
    assert_close,
    assert_encoded,
    assert_right,
    assert_same_however_cut,
    assert_same_in_company,
)
from tests.models.driver import load
from tests.models.logits_error import assert_same_logits
from tests.models.paging import Paging
from tests.models.reference import References
from tests.models.rounding import Exact
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.attention.triton.backend import TritonAttention  # noqa: E402

ROOT = Path(__file__).parents[3]
interpreted_triton = partial(TritonAttention, device=INTERPRETED)
CUT_OFF = Shape(
    num_heads=2,
    window_size=1,
    has_sinks=True,
    kept_as=KVCacheDtype.INT8,
    block_size=1,
    dtype=torch.bfloat16,
)
SMALL = Shape(num_heads=4, num_kv_heads=2, block_size=8)
THREE_KINDS = Shape(window_size=60, has_sinks=True, softcap=5.0)
"""A tile's tokens see tiles of keys in part, whole, and in part again."""
RAGGED = Shape(head_dim=64, v_head_size=64, kept_as=KVCacheDtype.INT8)
ONE_LONG = [*[Span(2, 1)] * 4, Span(900, 1)]
sizes = st.sampled_from([16, 32, 64, 128])
long_spans = st.lists(
    st.builds(Span, st.integers(0, 400), st.sampled_from([1, 1, 1, 20])), min_size=1, max_size=3
)


class InterpretedScene(UnroundedScene):
    """As an interpreter has it: bfloat16 is cut off where GPUs round, which is up to twice as far
    off."""

    def expected(self) -> Exact:
        exact = super().expected()
        is_cut = self.shape.dtype is torch.bfloat16
        return exact._replace(error=2 * exact.error) if is_cut else exact


def interpreted(rows: int, keys: int, min_split_keys: int, num_sms: int = 8) -> DeviceProperties:
    return INTERPRETED._replace(
        tile=TileShape(rows, keys, 1, 1), min_split_keys=min_split_keys, num_sms=num_sms
    )


@cases(18)
@given(shapes, spans, st.integers(0, 2**32), sizes, sizes)
@example(CUT_OFF, [Span(0, 1)], 0, 16, 16)  # weight and result are cut off by all of a unit
@example(THREE_KINDS, [Span(110, 20), Span(0, 1), Span(33, 3)], 1, 16, 16)
@example(replace(THREE_KINDS, kept_as=KVCacheDtype.FP8_E4M3), [Span(100, 33)], 2, 64, 16)
def test_tiles_may_be_of_any_size(
    shape: Shape, spans: list[Span], seed: int, rows: int, keys: int
) -> None:
    backend = partial(TritonAttention, device=interpreted(rows, keys, min_split_keys=256))
    assert_right(backend, InterpretedScene(shape, spans, seed), seed)


@cases(10)
@given(shapes, long_spans, st.integers(1, 60), st.integers(1, 100))
@example(RAGGED, [Span(0, 1), Span(1500, 1), Span(15, 1), Span(16, 1), Span(3, 2)], 32, 5)
@example(replace(RAGGED, dtype=torch.float16, kept_as=KVCacheDtype.FP8_E4M3), ONE_LONG, 32, 9)
def test_contexts_cut_among_programs_come_together_again(
    shape: Shape, spans: list[Span], min_split_keys: int, num_sms: int
) -> None:
    backend = partial(TritonAttention, device=interpreted(16, 32, min_split_keys, num_sms))
    assert_right(backend, InterpretedScene(shape, spans))


@cases(10)
@given(shapes, spans)
def test_a_sequence_gets_the_same_alone_and_in_company(shape: Shape, spans: list[Span]) -> None:
    assert_same_in_company(interpreted_triton, shape, spans)


@cases(10)
@given(shapes, st.lists(st.integers(1, 30), min_size=2, max_size=5))
def test_a_prompt_gets_the_same_however_it_is_cut(shape: Shape, sizes: list[int]) -> None:
    assert_same_however_cut(interpreted_triton, shape, sizes)


@pytest.mark.parametrize(
    "kind", [SMALL, replace(SMALL, window_size=20, kept_as=KVCacheDtype.FP8_E4M3)]
)
def test_a_step_is_right_again_when_its_tensors_are_filled_anew(kind: Shape) -> None:
    """As a captured graph is replayed: fewer sequences and tokens, in the same tensors."""
    first = Scene(kind, [Span(n, 1) for n in (90, 3, 40)])
    second = Scene(kind, [Span(60, 1), Span(2, 1)], seed=1)
    paging = first.paging()
    store = first.store(paging)
    backend = TritonAttention(store, interpreted(16, 16, min_split_keys=16))
    inputs = step_inputs(first.batch(paging))
    inputs = replace(inputs, bounds=StepBounds(200, True, False, 1))
    step = backend.over(inputs)
    assert_close(first.attend(step), first)

    second.fill(store, paging)
    new = step_inputs(second.batch(paging))
    inputs.query_starts.copy_(torch.tensor([*new.query_starts.tolist(), 2]))
    inputs.context_lens[:2] = new.context_lens
    for table, rows in zip(inputs.block_tables, new.block_tables, strict=True):
        table[:2, : rows.shape[1]] = rows
    for kept, slots in zip(inputs.slots, new.slots, strict=True):
        kept[:] = torch.tensor([*slots.tolist(), -1])
    query, key, value = (torch.cat((each, each[:1])) for each in second.inputs())
    assert_close(step.attend(second.layer, query, key, value)[:2], second)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kept_as", KEPT_AS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@cases(40)
@given(data=st.data())
def test_what_is_written_is_what_the_codec_makes_of_it(
    dtype: torch.dtype, kept_as: KVCacheDtype, data: st.DataObject
) -> None:
    """But for bfloat16's subnormals, which Triton's interpreter widens wrongly."""
    key = data.draw(keys_of_any_bits(dtype))
    if dtype is torch.bfloat16:
        key[key.abs() < torch.finfo(dtype).tiny] = 0
    assert_encoded(interpreted_triton, kept_as, key)


@given(st.integers(1, 576))
def test_two_tiles_hold_a_width_between_them(width: int) -> None:
    main, rest = tiles.split_size(width)
    assert {main.bit_count(), max(rest, 1).bit_count()} == {1} and main >= 16
    assert width <= main + rest <= tiles.columns(width)


WORST = {
    "few long": [Span(600, 1)] * 2,
    "one": [Span(900, 1)],
    "many": [Span(40, 1)] * 20,
    "mixed": [Span(500, 1), Span(3, 30)],
}


@torch.inference_mode()
@pytest.mark.parametrize("spans", WORST.values(), ids=WORST)
@pytest.mark.parametrize("shape", [SMALL, replace(SMALL, num_heads=34)], ids=["4", "34"])
def test_a_step_allocates_no_more_than_scratch_says(
    shape: Shape, spans: list[Span], tmp_path: Path
) -> None:
    scene = Scene(shape, spans)
    paging = scene.paging()
    backend = TritonAttention(scene.store(paging), INTERPRETED)
    batch, inputs = scene.batch(paging), scene.inputs()

    def step() -> None:
        backend.begin(batch).attend(scene.layer, *inputs)

    num_tokens = sum(span.num_new for span in spans)
    limits = StepLimits(1000, len(spans), num_tokens)
    out_bytes = 4 * num_tokens * shape.num_heads * shape.v_head_size
    most = triton_scratch_bytes([scene.layer], limits, shape.codec, INTERPRETED)
    assert peak_bytes(step, tmp_path / "memory.json") <= out_bytes + most


def test_launches_of_a_layer_are_made_once() -> None:
    scene = Scene(SMALL, [Span(0, 3)])
    backend = TritonAttention(scene.store(scene.paging()), INTERPRETED)
    launch = backend.launch_of(scene.layer, 4)
    assert backend.launch_of(scene.layer, 4) is launch
    assert backend.launch_of(scene.layer, 8).form.num_heads == 8
    windowed = replace(scene.layer, window_size=5)
    assert backend.launch_of(windowed, 4).form.layer == windowed
    assert backend.launch_of(scene.layer, 4).form.layer == scene.layer


def test_more_keys_than_kernels_count_are_refused() -> None:
    shape = Shape(num_kv_heads=2, device="meta")
    for num_blocks, is_counted in ((2**26, True), (2**26 + 1, False)):
        store = build_kv_store(
            shape.layout, KVSize(num_blocks, 16), codec=shape.codec, device=torch.device("meta")
        )
        with nullcontext() if is_counted else pytest.raises(ValueError, match="are too many"):
            TritonAttention(store, INTERPRETED)


EXACT, PACKED = (
    choose_codec(KVCacheDtype.AUTO, torch.float32),
    choose_codec(KVCacheDtype.INT8, torch.float32),
)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_it_runs_where_it_is_asked_for_and_can() -> None:
    assert (
        attention_name(AttentionBackendName.TRITON, AttentionSetup(CPU, EXACT, 576, 512))
        == "triton"
    )
    half = choose_codec(KVCacheDtype.AUTO, torch.float16)
    assert (
        attention_name(AttentionBackendName.AUTO, AttentionSetup(CPU, half, 64, 64)) == "reference"
    )
    assert (
        attention_name(AttentionBackendName.REFERENCE, AttentionSetup(GPU, EXACT, 64, 64))
        == "reference"
    )
    why = "TRITON_INTERPRET is set, which runs it on a CPU"
    assert (
        attention_name(AttentionBackendName.AUTO, AttentionSetup(GPU, EXACT, 64, 64))
        == f"reference (not triton: {why})"
    )
    scene = Scene(SMALL, [Span(9, 1), Span(0, 3)])
    assert_right(partial(build_attention, requested=AttentionBackendName.TRITON), scene)


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (AttentionSetup(GPU, EXACT, 64, 64), "TRITON_INTERPRET is set"),
        (
            AttentionSetup(CPU, EXACT, 640, 512),
            "keys of 640 or values of 512 elements are too wide",
        ),
        (AttentionSetup(CPU, PACKED, 256, 64), "float32 times quantised keys of over 128"),
    ],
)
def test_where_it_cannot_run_it_is_refused_in_words(site: AttentionSetup, why: str) -> None:
    with pytest.raises(ValueError, match=f"--attention-backend triton cannot be had: {why}"):
        attention_name(AttentionBackendName.TRITON, site)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "deepseek_v3"])
def test_a_model_says_by_it_what_it_says_by_the_reference(
    family: str, references: References
) -> None:
    checkpoint = references.checkpoint(family)
    loaded = load(checkpoint)
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(2, 30, block_size=8, tables=tables)
    batches = [
        paging.batch(chunks) for chunks in ([(0, 0, range(25))], [(0, 25, [7]), (1, 0, [3])])
    ]
    ways = [
        KVOptions(attention=name)
        for name in (AttentionBackendName.TRITON, AttentionBackendName.REFERENCE)
    ]
    assert loaded.attention_name(ways[0]) == "triton"
    assert loaded.scratch_bytes(StepLimits(30, 2, 30), ways[0]) > 0
    one, other = (loaded.attach(paging.num_blocks, 8, way) for way in ways)
    for batch in batches:
        assert_same_logits(one.forward(batch), other.forward(batch), checkpoint, num_tokens=26)


def python(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Where kernels are compiled, not interpreted."""
    environment = {name: os.environ[name] for name in os.environ if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cpu_is_refused_where_nothing_interprets(tmp_path: Path) -> None:
    code = (
        "import torch; from quire.models.attention.choice import *; "
        "from quire.models.config import AttentionBackendName, KVCacheDtype; "
        "from quire.models.kv.kv_codec import choose_codec; "
        "codec = choose_codec(KVCacheDtype.AUTO, torch.float32); "
        "site = AttentionSetup(torch.device('cpu'), codec, 64, 64); "
        "attention_name(AttentionBackendName.TRITON, site)"
    )
    said = python("-c", code, cache=tmp_path).stderr
    assert "cannot be had: it runs on NVIDIA GPUs, not on cpu" in said


@pytest.mark.long
@pytest.mark.parametrize("capabilities", [("90",), ("80", "86", "120")], ids="-".join)
def test_no_kernel_spills_registers_or_takes_too_much_shared_memory(
    capabilities: tuple[str, ...], tmp_path: Path
) -> None:
    """Compiling needs no GPU. For 9.0 as for 8.0 attention has five kernels in four cases, experts
    six programs in one, what is between linear layers three, and blocks are copied by one."""
    done = python("-m", "tools.triton_figures", "--few", "--for", *capabilities, cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = re.findall(r"\d+, \d+\.\d", done.stdout)
    assert len(figures) >= 4 * 5 + 6 + 3 + 1
