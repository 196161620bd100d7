"""Engines of two ranks, each in a process of its own that has no threads: so its rank is forked,
with everything imported already."""

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.models.parallel.rank_processes import JOBS
from tests.models.reference import BLOCK_SIZE, MAX_LEN, NUM_NEW, NUM_SEQS

NUM_RANKS = 2
NUM_STATES = 24
TIMEOUT_S = 100.0
Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class TwiceAsked:
    """The findings of an engine that is short of blocks.

    texts: all prompts at once.
    over_snapshots: one token for each of the same prompts, and one for the prompt with its text but
        for the last token, one by one.
    """

    facts: EngineFacts
    texts: Prompts
    num_preemptions: int
    over_snapshots: list[Prompts]
    num_hits: int


def ask_twice(folder: Path, prompts: Prompts, *, has_attention: bool) -> TwiceAsked:
    """Ask an engine of two ranks, in a new process. Raises RuntimeError with an error there."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([JOBS, __name__])
    near, far = context.Pipe()
    process = context.Process(target=_serve, args=(far, folder, prompts, has_attention))
    process.start()
    far.close()
    try:
        if not near.poll(TIMEOUT_S):
            raise TimeoutError("the engine does not answer")
        answer = near.recv()
    finally:
        process.kill()
        process.join()
    if isinstance(answer, TwiceAsked):
        return answer
    raise RuntimeError(answer)


def _serve(
    channel: Connection,
    folder: Path,
    prompts: Prompts,
    has_attention: bool,
) -> None:
    try:
        channel.send(_ask(folder, prompts, has_attention))
    except Exception as error:
        channel.send(repr(error))


def _ask(folder: Path, prompts: Prompts, has_attention: bool) -> TwiceAsked:
    engine, facts = _build(folder, has_attention)
    try:
        texts = _texts_of(engine, prompts, NUM_NEW)
        num_preemptions, num_hits = engine.stats.num_preemptions, engine.stats.num_prefix_hits
        again = [
            [*_texts_of(engine, [prompt], 1), *_texts_of(engine, [[*prompt, *text[:-1]]], 1)]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        return TwiceAsked(
            facts, texts, num_preemptions, again, engine.stats.num_prefix_hits - num_hits
        )
    finally:
        engine.close()


def _build(folder: Path, has_attention: bool) -> tuple[Engine, EngineFacts]:
    config = EngineConfig(
        ModelConfig(
            str(folder), device="cpu", dtype=ModelDtype.FLOAT32, tensor_parallel_size=NUM_RANKS
        ),
        memory=MemoryConfig(
            block_size=BLOCK_SIZE,
            kv_cache_tokens=3 * MAX_LEN if has_attention else None,
            num_recurrent_states=NUM_STATES,
        ),
        scheduling=SchedulingConfig(
            max_model_len=MAX_LEN, max_num_seqs=NUM_SEQS, max_num_batched_tokens=40
        ),
    )
    return build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def _texts_of(engine: Engine, prompts: Prompts, num_new: int) -> Prompts:
    """The texts of requests that come together."""
    texts: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    for name, prompt in zip(texts, prompts, strict=True):
        new = NewRequest(name, tuple(prompt), Sampling(temperature=0.0), Stopping(num_new))
        assert engine.submit(new) is None
    while engine.has_work:
        for delta in engine.step().deltas:
            texts[delta.request_id] += delta.token_ids
    return list(texts.values())
