"""The memory of several ranks: each has its share, and the least decides."""

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.footprint import Footprint
from quire.engine.config import EngineConfig, ModelConfig
from quire.engine.devices.memory import DeviceMemory, Memories
from quire.engine.startup.self_test import BUNDLED
from quire.engine.startup.sizing import Sizing, choose_limits
from quire.models.config import ModelDtype
from quire.models.loading.outline import OutlineOptions, outline, read_config

CPU = torch.device("cpu")
MIB = 1 << 20
CONFIG = EngineConfig(ModelConfig(BUNDLED))


def sizing() -> Sizing:
    folder = Path(BUNDLED)
    options = OutlineOptions(CPU, ModelDtype.FLOAT32, None, 16, CONFIG.kv_options)
    model = outline(folder, read_config(folder), options).loaded
    return Sizing(CONFIG, model, choose_limits(CONFIG.scheduling, 1024, CPU))


SIZING = sizing()
FOOTPRINT = Footprint(16, SIZING.layout.block_bytes(16), 1000)


def gpu(available: int) -> DeviceMemory:
    return DeviceMemory(1 << 40, available, is_host=False, is_unified=False)


def num_blocks(*devices: DeviceMemory) -> int:
    host = DeviceMemory(1 << 40, 1 << 40, is_host=True, is_unified=True)
    return SIZING.plan(FOOTPRINT, Memories(devices, host)).capacity.num_blocks


@given(st.lists(st.integers(103_000 * MIB, 112_000 * MIB), min_size=1, max_size=4))
def test_the_rank_with_the_least_memory_decides(available: list[int]) -> None:
    """On devices of 1 TiB, of which 90 % may be used."""
    alone = [num_blocks(gpu((1 << 40) - 900_000 * MIB + each)) for each in available]
    together = num_blocks(*(gpu((1 << 40) - 900_000 * MIB + each) for each in available))
    assert together == min(alone)


@given(st.integers(0, 1 << 40), st.integers(1, 64))
def test_ranks_on_one_machine_have_no_more_than_it_has(available: int, num_ranks: int) -> None:
    whole = DeviceMemory(1 << 40, available, is_host=True, is_unified=True)
    share = whole.share(num_ranks)
    assert num_ranks * share.available <= whole.available < num_ranks * (share.available + 1)
    assert num_ranks * share.total <= whole.total
