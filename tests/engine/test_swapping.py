"""Engines with too few blocks, whose copies end late: their text, and the time they are told."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
import torch

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.cache.spec import FULL
from quire.engine.engine import Engine
from quire.engine.runner import Runner, RunnerConfig
from quire.models.attention.choice import build_attention
from quire.models.batch import Batch, Model, StepRows
from quire.models.config import AttentionBackendName, KVCacheDtype, KVOptions, KVSize
from quire.models.hf import HFModel
from quire.models.kv.block_copier import BlockCopier
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import build_kv_store
from quire.models.kv.staged_queue import StagedQueue, Streams
from quire.models.loading.loaded_model import LoadedModel
from quire.models.toy import ToyModel
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Step, StepResult
from tests.engine.toy_engine import (
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    Shape,
    alone,
    cache_of,
    scheduler_config,
)
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import load
from tests.models.families import SERVED
from tests.models.kv.late_streams import Clock, LateStream, PresentStream, finish

CPU = torch.device("cpu")
TIGHT = Shape(
    4,
    12,
    6,
    16,
    caches_prefixes=True,
    watermark=0.0,
    late=False,
    num_host_blocks=60,
    preemption_mode=PreemptionMode.SWAP,
)
BLOCK_S = 0.25


class NotingScheduler(Scheduler):
    """A scheduler that adds up the time of copies that it was told."""

    told = CopyTime()

    def update(self, step: Step, result: StepResult, now: float) -> list[Delta]:
        told, new = self.told, result.copy_time
        self.told = CopyTime(told.num_blocks + new.num_blocks, told.copy_s + new.copy_s)
        return super().update(step, result, now)


class LateToTell:
    """The toy, whose copies take BLOCK_S a block and are told of when it is asked `lag` times
    later."""

    def __init__(self, lag: int) -> None:
        self._toy = ToyModel(
            VOCAB_SIZE, KVSize(TIGHT.num_blocks, TIGHT.block_size, TIGHT.num_host_blocks)
        )
        self._late = deque([CopyTime()] * lag)

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self._toy.copy_blocks(copies, new_blocks)

    def take_copy_time(self) -> CopyTime:
        num_blocks = self._toy.take_copy_time().num_blocks
        self._late.append(CopyTime(num_blocks, num_blocks * BLOCK_S))
        return self._late.popleft()

    def forward(self, batch: Batch) -> torch.Tensor:
        return self._toy.forward(batch)

    def forward_with_states(self, batch: Batch) -> StepRows:
        return self._toy.forward_with_states(batch)


def engine_over(model: Model, shape: Shape) -> tuple[Engine, NotingScheduler]:
    scheduler = NotingScheduler(scheduler_config(shape), cache_of(shape, (FULL,)))
    max_num_blocks = -(-MAX_MODEL_LEN // shape.block_size)
    config = RunnerConfig(shape.max_num_seqs, max_num_blocks, shape.block_size, "cpu")
    engine = Engine(scheduler, Runner(config, model), lambda: 0.0, is_overlapped=shape.late)
    return engine, scheduler


def requests(num: int, num_new: int = 20) -> list[NewRequest]:
    prompts = [tuple((5 * index + 3 * at) % VOCAB_SIZE for at in range(6)) for index in range(num)]
    return [
        NewRequest(f"r{index}", prompt, Sampling(temperature=0.0), Stopping(num_new))
        for index, prompt in enumerate(prompts)
    ]


def texts_of(engine: Engine, news: Sequence[NewRequest]) -> list[tuple[int, ...]]:
    texts: dict[str, tuple[int, ...]] = {new.id: () for new in news}
    for new in news:
        assert engine.submit(new) is None
    while engine.has_work:
        for delta in engine.step().deltas:
            texts[delta.request_id] += delta.token_ids
    return list(texts.values())


@pytest.mark.parametrize("late", [False, True], ids=["in time", "overlapped"])
@pytest.mark.parametrize("lag", [0, 1, 5])
def test_the_time_of_every_copy_is_told_if_only_with_the_next_request(lag: int, late: bool) -> None:
    engine, scheduler = engine_over(LateToTell(lag), replace(TIGHT, late=late))
    news = requests(6)
    assert texts_of(engine, news) == [alone(new) for new in news]
    stats = engine.stats
    num_copied = stats.num_copied_out + stats.num_copied_in
    assert stats.num_swaps > 0 and num_copied > 0
    assert scheduler.told.num_blocks <= num_copied
    (last,) = requests(1)
    texts_of(engine, [replace(last, id="another")])
    assert (stats.num_copied_out, stats.num_copied_in) == (
        engine.stats.num_copied_out,
        engine.stats.num_copied_in,
    )
    assert scheduler.told == CopyTime(num_copied, num_copied * BLOCK_S)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(save_checkpoint(SERVED["llama"], tmp_path_factory.mktemp("checkpoint")))


def staged_model(
    loaded: LoadedModel, kept_as: KVCacheDtype, *, half_rows: int
) -> tuple[Model, list[LateStream]]:
    """A model with the copies of a GPU: kernels that are interpreted, and streams that are late."""
    pytest.importorskip("triton", reason="triton is not installed")
    from quire.models.kv.triton.gatherer import TritonGatherer

    store = build_kv_store(
        loaded.facts.layout(KVOptions(kept_as)),
        KVSize(TIGHT.num_blocks, TIGHT.block_size, TIGHT.num_host_blocks),
        codec=choose_codec(kept_as, loaded.kv_dtype),
        device=CPU,
    )
    clock = Clock()
    streams = [LateStream(clock), LateStream(clock)]
    staging = torch.full((2 * half_rows, store.row_bytes), 0xEE, dtype=torch.uint8)
    gatherer = TritonGatherer(store.tensors, staging)
    queue = StagedQueue(gatherer, store.host, staging, Streams(PresentStream(streams), *streams))
    backend = build_attention(store, AttentionBackendName.AUTO)
    vocab_size = loaded.facts.vocab_size
    model = HFModel(loaded.module, loaded.context, BlockCopier(queue), backend, vocab_size, store)
    return model, streams


@pytest.mark.parametrize("kept_as", [KVCacheDtype.AUTO, KVCacheDtype.INT8])
@pytest.mark.parametrize("late", [False, True], ids=["in time", "overlapped"])
def test_a_model_whose_blocks_go_by_a_gpus_way_says_the_same(
    loaded: LoadedModel, late: bool, kept_as: KVCacheDtype
) -> None:
    news = requests(5, 14)
    options = KVOptions(kept_as)
    roomy = replace(TIGHT, num_blocks=60, num_host_blocks=0, preemption_mode=PreemptionMode.AUTO)
    plain, _ = engine_over(loaded.attach(60, TIGHT.block_size, options), roomy)
    expected = texts_of(plain, news)
    model, streams = staged_model(loaded, kept_as, half_rows=1)
    engine, scheduler = engine_over(model, replace(TIGHT, late=late))
    assert texts_of(engine, news) == expected
    stats = engine.stats
    assert stats.num_swaps > 0 and plain.stats.num_preemptions == 0
    finish(streams, [0, 1])
    num_told = scheduler.told.num_blocks + model.take_copy_time().num_blocks
    assert num_told == stats.num_copied_out + stats.num_copied_in > 0
