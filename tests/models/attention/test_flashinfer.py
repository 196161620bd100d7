"""FlashInfer's adapter, on a stand-in of its API: what it is given is right in shape, type and
place, and what is attended is what every backend must attend. Keys and values are written by
Triton's kernel, under the interpreter.
"""

import ast
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.startup.build import build_engine
from quire.models.attention.backend import AttentionBackend, Site
from quire.models.attention.choice import attention_name, build_attention, plan_attention
from quire.models.attention.flashinfer.api import DecodeOptions, DecodePlan, PrefillPlan
from quire.models.attention.flashinfer.pages import find_pages, padded, parts_of
from quire.models.attention.flashinfer.scratch import kept_bytes
from quire.models.attention.flashinfer.wrappers import WORKSPACE_BYTES
from quire.models.attention.scratch import StepLimits
from quire.models.attention.triton.tiles import Device
from quire.models.batch import Batch
from quire.models.config import AttentionBackendName, KVCacheDtype, KVOptions, ModelDtype
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.decode import ReplayableBackend, record_decode
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.graphs.sizes import ladder
from quire.models.hf import HFModel
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.models.attention.cases import KINDS, spans
from tests.models.attention.flashinfer_stand_in import (
    ALL,
    Kernels,
    KernelScene,
    Machine,
    installed,
)
from tests.models.attention.scene import Shape, Span
from tests.models.attention.test_backends import assert_close, assert_right
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import load
from tests.models.families import SERVED
from tests.models.graphs.device import StandInDevice, ignore_progress
from tests.models.paging import Paging
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")

FLASHINFER, REFERENCE = AttentionBackendName.FLASHINFER, AttentionBackendName.REFERENCE
CPU = torch.device("cpu")
HALF = choose_codec(KVCacheDtype.AUTO, torch.bfloat16)
PLAIN = Shape(head_dim=64, v_head_size=64, dtype=torch.float16)
BLOCK_SIZE = 8
TOLERANCE = 0.03
"""Of the largest logit: what a model of two or three layers in bfloat16 may be off."""


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with installed(Machine()) as here:
        yield here


def flashinfer(store: KVStore) -> AttentionBackend:
    return build_attention(store, FLASHINFER)


@st.composite
def plain_shapes(draw: st.DrawFn) -> Shape:
    heads, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 4, 5]))
    size = draw(st.sampled_from([64, 64, 128, 256]))
    return Shape(
        num_heads=heads * group,
        num_kv_heads=heads,
        head_dim=size,
        v_head_size=size,
        window_size=draw(st.one_of(st.none(), st.integers(1, 90))),
        softcap=draw(st.sampled_from([None, 5.0])),
        hybrid=draw(st.booleans()),
        block_size=draw(st.sampled_from([2, 3, 8, 16])),
        dtype=draw(st.sampled_from([torch.float16, torch.bfloat16])),
    )


few_spans = st.lists(
    st.builds(Span, st.integers(0, 70), st.sampled_from([1, 1, 2, 19])), min_size=1, max_size=4
)


@cases(10)
@given(plain_shapes(), few_spans, st.integers(0, 2**32))
def test_plain_layers_are_what_softmax_by_hand_is(
    shape: Shape, spans: list[Span], seed: int
) -> None:
    assert_right(flashinfer, KernelScene(shape, spans, seed), seed)


@cases(50)
@given(spans, st.one_of(st.none(), st.integers(1, 90)), st.sampled_from([1, 3, 16]))
def test_pages_hold_all_that_is_seen_and_end_where_the_context_does(
    spans: list[Span], window: int | None, block_size: int
) -> None:
    pattern = FULL if window is None else AttentionPattern(AttentionType.SLIDING, window)
    paging = Paging(len(spans), 120, block_size=block_size)
    batch = paging.batch([(i, past, [0] * new) for i, (past, new) in enumerate(spans)])
    rows: list[int] = []
    for part in parts_of(batch):
        pages = padded(find_pages(batch.block_tables[0], part, pattern, block_size), 8)
        starts, ids = pages.starts.tolist(), pages.ids.tolist()
        for place, number in enumerate(part.numbers):
            past, length = spans[number].num_past, sum(spans[number])
            first = pattern.first_needed(past) // block_size
            mine = ids[starts[place] : starts[place + 1]]
            assert mine == paging.tables[0][number][first : -(-length // block_size)]
            held = (len(mine) - 1) * block_size + int(pages.last_sizes[place])
            assert first * block_size + held == length
        assert ids[starts[len(part.numbers)] :] == [0] * (8 - len(part.numbers))
        rows += torch.arange(len(batch.positions))[part.rows].tolist()
    assert sorted(rows) == list(range(len(batch.positions)))


@pytest.mark.parametrize("kind", ["chunk", "sinks", "wide keys", "latent"])
def test_other_layers_are_tritons(kind: str, machine: Machine) -> None:
    shape = replace(KINDS[kind], dtype=torch.float16)
    assert_right(flashinfer, KernelScene(shape, [Span(20, 1), Span(3, 9)]))
    assert not machine.plans


def test_layers_that_are_alike_share_a_plan(machine: Machine) -> None:
    shape = replace(PLAIN, window_size=8, hybrid=False)
    spans = [Span(40, 3), Span(50, 1), Span(0, 30), Span(2, 1)]
    wide, narrow, alike = (
        KernelScene(replace(shape, index=index), spans, seed=index) for index in range(3)
    )
    paging = wide.paging()
    store = wide.store(paging)
    narrow.fill(store, paging)
    alike.fill(store, paging)
    step = flashinfer(store).begin(wide.batch(paging))
    for scene in (wide, narrow, alike, wide):
        assert_close(scene.attend(step), scene)
    plans = machine.plans
    assert sorted({plan.window_left for plan in plans}) == [-1, 7]
    assert len(plans) == 4, "one for chunks of a token and one for longer"


def test_what_is_not_compiled_is_tritons_and_named(machine: Machine) -> None:
    shape = replace(PLAIN, window_size=8)
    site = Site(CPU, shape.codec, 64, 64, layers=shape.layers)
    assert attention_name(FLASHINFER, site) == "flashinfer"
    with installed(Machine(ALL - {Kernels(64, has_window=True, has_cap=False)})) as other:
        why = "no precompiled kernels for float16 heads of 64 with windows"
        said = f"flashinfer, triton in 2 of 3 layers ({why}, see flashinfer-jit-cache)"
        assert attention_name(FLASHINFER, site) == said
        assert_right(flashinfer, KernelScene(shape, [Span(9, 1), Span(0, 3)]))
        assert all(plan.window_left < 0 for plan in other.plans)
    with installed(Machine(frozenset())) as nothing:
        said = attention_name(FLASHINFER, site)
        assert said.startswith("triton (not flashinfer: no precompiled kernels for float16 heads")
        assert_right(flashinfer, KernelScene(replace(shape, index=0), [Span(9, 1)]))
        assert not nothing.plans


def test_a_gpu_that_is_not_here_is_planned_with_it() -> None:
    gpu, limits = Device(90, num_sms=132), StepLimits(4096, 64, 2048)
    layers = PLAIN.layers
    site = Site(torch.device("cuda"), HALF, 64, 64, layers=layers)
    planned = plan_attention(FLASHINFER, site, gpu, layers, limits)
    triton = plan_attention(AttentionBackendName.TRITON, site, gpu, layers, limits)
    assert planned.name == "flashinfer"
    assert planned.scratch_bytes - triton.scratch_bytes == kept_bytes(layers) >= WORKSPACE_BYTES
    packed = site._replace(codec=choose_codec(KVCacheDtype.FP8_E4M3, torch.bfloat16))
    with pytest.raises(ValueError, match="flashinfer cannot be had: it reads keys and values as"):
        plan_attention(FLASHINFER, packed, gpu, layers, limits)


def test_auto_does_not_take_it() -> None:
    assert not attention_name(AttentionBackendName.AUTO, Site(CPU, HALF, 64, 64)).startswith("fl")


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (Site(torch.device("cuda"), HALF, 64, 64), "TRITON_INTERPRET is set"),
        (Site(CPU, choose_codec(KVCacheDtype.INT8, torch.bfloat16), 64, 64), "it reads keys and"),
        (Site(CPU, choose_codec(KVCacheDtype.AUTO, torch.float32), 64, 64), "it computes bfloat16"),
    ],
)
def test_where_it_cannot_run_it_is_refused_in_words(site: Site, why: str) -> None:
    with pytest.raises(ValueError, match=f"--attention-backend flashinfer cannot be had: {why}"):
        attention_name(FLASHINFER, site)


def checkpoint(name: str, folder: Path) -> Path:
    """A family's, with heads that FlashInfer has."""
    family = SERVED[name]
    fields = {**family.fields, "head_dim": 64}
    return save_checkpoint(family._replace(fields=fields), folder / name)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_model_says_by_it_what_it_says_by_the_reference(family: str, tmp_path: Path) -> None:
    loaded = load(checkpoint(family, tmp_path), "bfloat16")
    num_groups = len(loaded.facts.layout(KVOptions()).groups)
    paging = Paging(3, 30, block_size=BLOCK_SIZE, num_groups=num_groups)
    ways = [KVOptions(attention=each) for each in (FLASHINFER, REFERENCE)]
    assert loaded.attention_name(ways[0]) == "flashinfer"
    assert loaded.scratch_bytes(StepLimits(30, 2, 30), ways[0]) > 2**28
    one, other = (loaded.attach(paging.num_blocks, BLOCK_SIZE, way) for way in ways)
    for chunks in ([(0, 0, range(25))], [(0, 25, [7]), (1, 0, [3, 5]), (2, 0, [9])]):
        assert_near(one, other, paging.batch(chunks))


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_captured_steps_are_planned_before_they_are_replayed(
    family: str, tmp_path: Path, machine: Machine
) -> None:
    num_seqs, max_len = 5, 40
    loaded = load(checkpoint(family, tmp_path), "bfloat16")
    num_groups = len(loaded.facts.layout(KVOptions()).groups)
    paging = Paging(num_seqs, max_len, block_size=BLOCK_SIZE, num_groups=num_groups)
    launched = loaded.attach(paging.num_blocks, BLOCK_SIZE, KVOptions(attention=FLASHINFER))
    assert isinstance(launched.backend, ReplayableBackend)
    limits = DecodeLimits(num_seqs, max_len, -(-max_len // BLOCK_SIZE), num_groups)
    num_trials = len(machine.plans)
    recorded = record_decode(
        launched, launched.backend, Buffers(limits, CPU), StandInDevice(), ignore_progress
    )
    assert not recorded.why_not
    replayed_model = with_recorded(launched, recorded)
    num_kinds = len({plan.kernels for plan in machine.plans[num_trials:]})
    for count, length in ((3, 20), (2, 33), (5, 9), (1, 1)):
        contexts = [(seq, 0, range(3, 3 + length + seq)) for seq in range(count)]
        launched.forward(paging.batch(contexts))
        before = len(machine.plans)
        batch = paging.batch([(seq, length + seq, [7 + seq]) for seq in range(count)])
        assert_near(replayed_model, launched, batch)
        replayed, after = machine.plans[before:][:num_kinds], machine.plans[before:][num_kinds:]
        assert {len(plan.last_sizes) for plan in replayed} == {padded_size(count, num_seqs)}
        assert {len(plan.last_sizes) for plan in after} == {count}


def test_an_engine_says_that_it_has_it(tmp_path: Path) -> None:
    config = EngineConfig(
        ModelConfig(
            str(checkpoint("llama", tmp_path)),
            device="cpu",
            dtype=ModelDtype.BFLOAT16,
            attention_backend=FLASHINFER,
        ),
        memory=MemoryConfig(kv_cache_tokens=64),
        scheduling=SchedulingConfig(max_model_len=32, max_num_seqs=2, max_num_batched_tokens=32),
    )
    engine, facts = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    assert facts.attention == "flashinfer"
    new = NewRequest("0", (3, 4, 5), Sampling(temperature=0.0), Stopping(4))
    assert engine.submit(new) is None
    token_ids: list[int] = []
    while engine.has_work:
        for delta in engine.step().deltas:
            token_ids += delta.token_ids
    assert len(token_ids) == 4


def padded_size(count: int, num_seqs: int) -> int:
    return next(size for size in sorted(ladder(num_seqs)) if size >= count)


def assert_near(one: HFModel | GraphedModel, other: HFModel, batch: Batch) -> None:
    found, expected = one.forward(batch).double(), other.forward(batch).double()
    assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()


GIVEN = {
    "prefill.py": ("BatchPrefillWithPagedKVCacheWrapper", PrefillPlan.__required_keys__, ()),
    "decode.py": (
        "BatchDecodeWithPagedKVCacheWrapper",
        DecodePlan.__required_keys__,
        DecodeOptions.__optional_keys__,
    ),
}


@pytest.mark.parametrize("file", GIVEN)
def test_the_wheel_takes_what_it_is_given(file: str) -> None:
    """By its source, so that neither a GPU nor what the wheel depends on is needed."""
    wrapper, given, options = GIVEN[file]
    spec = PathFinder.find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("flashinfer is not installed")
    (folder,) = spec.submodule_search_locations
    methods = methods_of(wrapper, Path(folder, file))
    assert given <= names_of(methods["plan"]) | names_of(methods.get("_plan_impl"))
    assert required(methods["plan"]) - {"self"} <= given
    assert {"q", "paged_kv_cache", "out"} <= names_of(methods["run"])
    assert {"float_workspace_buffer", "kv_layout", *options} <= names_of(methods["__init__"])
    reset = {"self", "float_workspace_buffer", "int_workspace_buffer"}
    assert names_of(methods["reset_workspace_buffer"]) == reset


def methods_of(name: str, file: Path) -> dict[str, ast.FunctionDef]:
    """Return the methods of a class; of one with overloads the last."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def names_of(function: ast.FunctionDef | None) -> set[str]:
    if function is None:
        return set()
    arguments = function.args
    return {each.arg for each in arguments.args + arguments.kwonlyargs}


def required(function: ast.FunctionDef) -> set[str]:
    arguments = function.args
    return {each.arg for each in arguments.args[: len(arguments.args) - len(arguments.defaults)]}
