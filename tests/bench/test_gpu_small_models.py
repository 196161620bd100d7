"""Engines of the acceptance's checks leave a GPU's memory to those beside them and after them."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bench.gpu.check import Place
from bench.gpu.correctness.engine import AT_ONCE, ROOMY, WAYS
from bench.gpu.correctness.small_models import MAX_LEN, Way, prompts, texts_of, with_engine
from transformers import PreTrainedModel

from quire.engine.config import MemoryConfig
from quire.engine.engine import Engine
from quire.models.hf import HFModel
from quire.models.kv.kv_store import KVStore

KEPT_ALIVE = (Engine, HFModel, KVStore, PreTrainedModel)


@pytest.fixture(autouse=True)
def no_collection_by_chance() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(torch.device("cpu"), is_rehearsal=True, folder=tmp_path)


def num_alive() -> int:
    return sum(isinstance(each, KEPT_ALIVE) for each in gc.get_objects())


def test_nothing_is_left_of_an_engine(place: Place) -> None:
    before = num_alive()
    seen = []

    def use(engine: Engine) -> list[list[int]]:
        seen.append(num_alive() - before)
        return texts_of(engine, prompts(2, MAX_LEN // 2), 2)

    for _ in range(2):
        texts = with_engine("llama", place, Way(ROOMY, AT_ONCE), use)
        assert all(map(len, texts))
        assert num_alive() == before
    assert min(seen) >= len(KEPT_ALIVE)


def test_an_engine_is_gone_after_an_error_too(place: Place) -> None:
    before = num_alive()

    def fail(engine: Engine) -> None:
        raise RuntimeError("a step fails")

    with pytest.raises(RuntimeError, match="a step fails"):
        with_engine("llama", place, Way(ROOMY, AT_ONCE), fail)
    gc.collect()
    assert num_alive() == before


def test_a_cache_as_large_as_the_device_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="must have a size"):
        with_engine("llama", place, Way(MemoryConfig(), AT_ONCE), lambda engine: None)


@pytest.mark.parametrize("name", WAYS)
def test_every_way_gives_its_cache_a_size(name: str) -> None:
    assert WAYS[name].memory.budget.is_explicit and WAYS[name].memory.swap_space is not None
