"""Starts on a stand-in for a GPU: its launches are captured on tapes, which replay them on the CPU,
its kernels are Triton's under the interpreter, and its memory is as large as a test says."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.devices.memory import DeviceMemory
from quire.engine.devices.platform import Platform
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.startup.build_model import build_model_engine
from quire.engine.startup.start import PhaseTimer
from quire.models.config import AttentionBackendName, LinearBackend, ModelDtype
from quire.models.parallel.ranks import Ranks
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.models.driver import ignore_progress
from tests.models.graphs.device import StandInDevice
from tests.models.reference import BLOCK_SIZE, MAX_LEN

GIB = 1 << 30


@dataclass
class StandInGPU:
    """A GPU with `total` bytes, of which others use `used`. `captures` are what its starts capture
    with."""

    total: int = GIB
    used: int = 0
    captures: list[StandInDevice] = field(default_factory=list)

    @property
    def platform(self) -> Platform:
        return Platform(self._measure, self._graph_device)

    @property
    def num_replays(self) -> int:
        return sum(each.num_replays for each in self.captures)

    def _measure(self, device: torch.device) -> DeviceMemory:
        return DeviceMemory(self.total, self.total - self.used, is_host=False, is_unified=False)

    def _graph_device(self, device: torch.device, ranks: Ranks | None) -> StandInDevice:
        self.captures.append(StandInDevice(ranks=ranks))
        return self.captures[-1]


def config_of(
    folder: Path,
    model: ModelConfig,
    memory: MemoryConfig,
    *,
    is_overlapped: bool = True,
) -> EngineConfig:
    """Return the configuration of an engine in float32 with Triton's attention, as on a GPU, and
    torch's layers, whose operations a tape sees."""
    as_on_gpu = replace(
        model,
        model=str(folder),
        device="cpu",
        dtype=ModelDtype.FLOAT32,
        linear_backend=LinearBackend.TORCH,
        attention_backend=AttentionBackendName.TRITON,
    )
    scheduling = SchedulingConfig(
        max_model_len=MAX_LEN,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        async_scheduling=is_overlapped,
    )
    return EngineConfig(as_on_gpu, replace(memory, block_size=BLOCK_SIZE), scheduling)


def start(config: EngineConfig, gpu: StandInGPU) -> tuple[Engine, EngineFacts]:
    return build_model_engine(
        config,
        PhaseTimer(time.monotonic),
        on_progress=ignore_progress,
        platform=gpu.platform,
    )


def submit(engine: Engine, prompts: Sequence[Sequence[int]], num_new: int) -> None:
    """Ask for a greedy continuation of each prompt; the requests are numbered."""
    for index, prompt in enumerate(prompts):
        new = NewRequest(str(index), tuple(prompt), Sampling(temperature=0.0), Stopping(num_new))
        assert engine.submit(new) is None


def texts_of(engine: Engine, prompts: Sequence[Sequence[int]], num_new: int) -> list[list[int]]:
    """Return what an engine says to prompts that it gets at once."""
    submit(engine, prompts, num_new)
    texts: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for delta in engine.step().deltas:
            texts[int(delta.request_id)] += delta.token_ids
    return texts
