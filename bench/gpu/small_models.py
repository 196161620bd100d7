"""Small random models of real families, for the checks that compare what an engine says."""

import random
from pathlib import Path

from tests.models.checkpoints import save_checkpoint
from tests.models.families import DENSE, SERVED, VOCAB, Family

from bench.gpu.check import Place
from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.models.config import ModelDtype
from quire.scheduler.request import NewRequest, Sampling, Stopping

MAX_LEN, BLOCK_SIZE = 96, 8
LONG_ROPE = Family(
    "phi3",
    "full",
    {
        **DENSE,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": MAX_LEN + 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.3, 1.7],
            "long_factor": [2.0, 3.0, 5.0, 8.0],
            "original_max_position_embeddings": MAX_LEN + 32,
        },
    },
)
FAMILIES = {**SERVED, "phi3, long rope": LONG_ROPE}


def checkpoint(name: str, place: Place) -> Path:
    """Return the folder of a family's checkpoint, made when it is first asked for."""
    folder = place.folder / name.replace(", ", "-").replace(" ", "-")
    if not (folder / "config.json").exists():
        made = folder.with_name(f"{folder.name}-{random.getrandbits(32):08x}")
        save_checkpoint(FAMILIES[name], made)
        if not folder.exists():
            made.rename(folder)
    return folder


def build(name: str, place: Place, memory: MemoryConfig, scheduling: SchedulingConfig) -> Engine:
    """Return an engine over a family's checkpoint in float32, which captures its decode steps."""
    model = ModelConfig(
        str(checkpoint(name, place)), device=str(place.device), dtype=ModelDtype.FLOAT32
    )
    return build_quietly(EngineConfig(model, memory, scheduling))[0]


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
