"""Small random models of real families, for the checks that compare what an engine says."""

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED, VOCAB

from bench.gpu.check import Place
from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.models.config import CUDAGraphMode, ModelDtype
from quire.models.experts.replacement import replace_experts
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from quire.scheduler.request import NewRequest, Sampling, Stopping

MAX_LEN, BLOCK_SIZE = 96, 8

Result = TypeVar("Result")


class Way(NamedTuple):
    """A way in which the steps of an engine are taken and launched. Its `memory` has a size, since
    several checks share a device."""

    memory: MemoryConfig
    scheduling: SchedulingConfig
    mode: CUDAGraphMode = CUDAGraphMode.FULL_DECODE_ONLY


def checkpoint(name: str, place: Place) -> Path:
    """Return the folder of a family's checkpoint, made when it is first asked for."""
    folder = place.folder / name.replace(", ", "-").replace(" ", "-")
    if not (folder / "config.json").exists():
        made = folder.with_name(f"{folder.name}-{random.getrandbits(32):08x}")
        save_checkpoint(SERVED[name], made)
        if not folder.exists():
            made.rename(folder)
    return folder


def load(name: str, place: Place) -> LoadedModel:
    """Return a family's model in float32, with grouped experts in a rehearsal as on a GPU."""
    loaded = load_model(
        ModelSource(str(checkpoint(name, place))),
        dtype=ModelDtype.FLOAT32,
        device=place.device,
        on_progress=lambda phase, done, total: None,
    )
    if place.is_rehearsal:
        replace_experts(loaded.module)
    return loaded


def with_engine(name: str, place: Place, way: Way, use: Callable[[Engine], Result]) -> Result:
    """Return what `use` makes of an engine over a family's checkpoint in float32. Nothing is left
    of the engine then, so that the next one has its memory. Raises ValueError where its KV cache
    would be as large as the device."""
    if not way.memory.budget.is_explicit:
        raise ValueError("the KV cache of an engine beside others must have a size")
    model = ModelConfig(
        str(checkpoint(name, place)),
        device=str(place.device),
        dtype=ModelDtype.FLOAT32,
        cudagraph_mode=way.mode,
    )
    engine, _ = build_quietly(EngineConfig(model, way.memory, way.scheduling))
    try:
        return use(engine)
    finally:
        engine.close()
        del engine
        gc.collect()
        if place.device.type == "cuda":
            torch.cuda.empty_cache()


def prompts(number: int, longest: int) -> list[list[int]]:
    """Return prompts of random tokens, some of which begin alike."""
    rng = random.Random(number)
    found = [
        [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(number)
    ]
    for index in range(1, number, 4):
        found[index] = (found[index - 1][:20] + found[index])[:longest]
    return found


def submit(engine: Engine, texts: list[list[int]], num_new: int) -> None:
    """Ask for a greedy continuation of each; the requests are numbered."""
    for index, prompt in enumerate(texts):
        asked = NewRequest(str(index), tuple(prompt), Sampling(temperature=0.0), Stopping(num_new))
        refusal = engine.submit(asked)
        if refusal is not None:
            raise RuntimeError(refusal.message)


def texts_of(engine: Engine, texts: list[list[int]], num_new: int) -> list[list[int]]:
    """Return what the engine says to prompts that it gets at once."""
    submit(engine, texts, num_new)
    said: list[list[int]] = [[] for _ in texts]
    while engine.has_work:
        for delta in engine.step().deltas:
            said[int(delta.request_id)] += delta.token_ids
    return said
