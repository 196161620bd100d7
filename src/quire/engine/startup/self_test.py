"""Tries an engine on this machine: whether it says what transformers says, and how near its steps
come to the time that reading the weights takes.
"""

import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from statistics import median
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.devices.placement import choose_placement
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.startup.build import build_engine
from quire.engine.startup.device_speed import measure_speed
from quire.models.config import ModelDtype
from quire.scheduler.request import NewRequest, Sampling, Stopping

BUNDLED = str(files("quire.models") / "bundled")
MAX_MODEL_LEN = 256
KV_TOKENS = 4096
PROMPTS = (
    tuple(range(5, 12)),
    tuple(range(20, 90, 3)),
    tuple(range(900, 500, -7)),
)
"""Token ids of the bundled model, of several blocks and of less than one."""
NUM_COMPARED = 24
NUM_TIMED = 160
"""The tokens of each output."""
WIDTH = 256
"""The hidden size of the bundled model."""
GREEDY = Sampling(temperature=0.0)


class Fidelity(NamedTuple):
    """The tokens of all outputs, and those that are the reference's, up to the first that is not in
    each output."""

    num_tokens: int
    num_equal: int

    @property
    def is_exact(self) -> bool:
        """Whether every token is the reference's."""
        return self.num_tokens == self.num_equal


class DecodeSpeed(NamedTuple):
    """The speed of one stream.

    step_s: seconds of a decode step, the median.
    floor_s: seconds that reading all weights once takes on this device.
    """

    device: str
    dtype: str
    attention: str
    step_s: float
    floor_s: float


def compare_with_transformers() -> Fidelity:
    """Compare greedy tokens of the bundled model in float32 with those of transformers, which
    computes them without a KV cache of blocks or a kernel of Quire. Requests run together."""
    engine, _ = _build(ModelDtype.FLOAT32)
    outputs = _run(engine, PROMPTS, NUM_COMPARED)
    engine.close()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        BUNDLED, dtype=torch.float32, attn_implementation="eager"
    )
    num_equal = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        wanted = _reference_tokens(reference, prompt)
        same = [ours == theirs for ours, theirs in zip(output, wanted, strict=True)]
        num_equal += (*same, False).index(False)
    return Fidelity(len(PROMPTS) * NUM_COMPARED, num_equal)


def time_decoding() -> DecodeSpeed:
    """Time decode steps of one stream of the bundled model, as it would be served here."""
    engine, facts = _build(ModelDtype.AUTO)
    _run(engine, PROMPTS[:1], NUM_COMPARED)
    times_s = list(_step_times_s(engine))
    engine.close()
    weight_bytes = sum(line.num_bytes for line in facts.receipt if line.kind == "weights")
    placement = choose_placement(ModelConfig(BUNDLED))
    floor_s = weight_bytes / measure_speed(placement, facts.dtype, weight_bytes, WIDTH).bytes_s
    return DecodeSpeed(facts.device, facts.dtype, facts.attention, median(times_s), floor_s)


def _build(dtype: ModelDtype) -> tuple[Engine, EngineFacts]:
    config = EngineConfig(
        ModelConfig(BUNDLED, dtype=dtype),
        MemoryConfig(kv_cache_tokens=KV_TOKENS),
        SchedulingConfig(max_model_len=MAX_MODEL_LEN, async_scheduling=False),
    )
    return build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def _run(engine: Engine, prompts: Sequence[tuple[int, ...]], num_tokens: int) -> list[list[int]]:
    """Return the outputs of prompts that run together. Raises ValueError where one is refused or
    fails."""
    outputs: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        _submit(engine, str(index), prompt, num_tokens)
        outputs[str(index)] = []
    while engine.has_work:
        for delta in engine.step().deltas:
            outputs[delta.request_id] += delta.token_ids
    short = [len(each) for each in outputs.values() if len(each) != num_tokens]
    if short:
        raise ValueError(f"an output ended after {short[0]} tokens of {num_tokens}")
    return list(outputs.values())


def _submit(engine: Engine, name: str, prompt: tuple[int, ...], num_tokens: int) -> None:
    refusal = engine.submit(NewRequest(name, prompt, GREEDY, Stopping(num_tokens)))
    if refusal is not None:
        raise ValueError(f"the engine refuses a request: {refusal}")


def _step_times_s(engine: Engine) -> Iterator[float]:
    """Yield the seconds of each decode step of one stream."""
    _submit(engine, "timed", PROMPTS[0], NUM_TIMED)
    while engine.has_work:
        began_s = time.perf_counter()
        output = engine.step()
        if output.num_tokens == 1:
            yield time.perf_counter() - began_s


def _reference_tokens(model: PreTrainedModel, prompt: tuple[int, ...]) -> list[int]:
    """Return the greedy continuation by transformers, which no end token ends."""
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=NUM_COMPARED, do_sample=False, pad_token_id=0
    )
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids))  # type: ignore[operator]
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens
