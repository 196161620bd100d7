"""Whole models on a GPU: an engine without a server, and transformers' own continuous batching over
the same weights."""

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.models.config import ModelDtype
from quire.scheduler.request import NewRequest, Sampling, Stopping

NUM_PROMPT, NUM_OUTPUT, LONG_PROMPT = 128, 128, 2048
MAX_MODEL_LEN = 4096
NUM_PROFILED = 24


class Size(NamedTuple):
    """The shape of a Llama."""

    hidden: int
    mlp: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab: int
    is_tied: bool


SIZES = {
    "tiny": Size(64, 128, 2, 4, 2, 512, is_tied=True),
    "1b": Size(2048, 8192, 16, 32, 8, 128256, is_tied=True),
    "8b": Size(4096, 14336, 32, 32, 8, 128256, is_tied=False),
}
"""The last two have the dimensions of Llama 3.2 1B and Llama 3.1 8B, by their model cards."""


class Decoded(NamedTuple):
    """One run of so many requests at once. `step_ms`: the median of steps in which all of them
    decoded. `tokens_s`: of outputs, from first to last."""

    num_requests: int
    tokens_s: float
    step_ms: float


def make_checkpoint(folder: Path, size: Size, device: torch.device) -> int:
    """Random weights in bfloat16, made on the device. Returns their bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        vocab_size=size.vocab,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=size.is_tied,
        dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    return sum(tensor.nbytes for tensor in model.parameters())


def kv_token_bytes(size: Size) -> int:
    """Return the bytes of a token's K and V in all layers, in bfloat16."""
    width = size.hidden // size.num_heads
    return 2 * size.num_layers * size.num_kv_heads * width * 2


def build(folder: Path, device: torch.device, max_num_seqs: int, share: float) -> Engine:
    config = EngineConfig(
        ModelConfig(str(folder), device=str(device), dtype=ModelDtype.BFLOAT16),
        memory=MemoryConfig(gpu_memory_utilization=share, enable_prefix_caching=False),
        scheduling=SchedulingConfig(max_model_len=MAX_MODEL_LEN, max_num_seqs=max_num_seqs),
    )
    return build_quietly(config)[0]


def prompts_of(num_requests: int, length: int, vocab: int) -> list[list[int]]:
    rng = random.Random(num_requests)
    return [[rng.randrange(vocab) for _ in range(length)] for _ in range(num_requests)]


def submit(engine: Engine, prompts: Sequence[Sequence[int]], num_output: int) -> None:
    for index, prompt in enumerate(prompts):
        greedy = Sampling(temperature=0.0)
        new = NewRequest(str(index), tuple(prompt), greedy, Stopping(num_output))
        refusal = engine.submit(new)
        if refusal is not None:
            raise RuntimeError(refusal.message)


def decode(engine: Engine, num_requests: int, vocab: int) -> Decoded:
    submit(engine, prompts_of(num_requests, NUM_PROMPT, vocab), NUM_OUTPUT)
    began_s, steps_s = time.perf_counter(), []
    while engine.has_work:
        turned_s = time.perf_counter()
        output = engine.step()
        if len(output.deltas) == output.num_tokens == num_requests:
            steps_s.append(time.perf_counter() - turned_s)
    took_s = time.perf_counter() - began_s
    step_ms = 1e3 * statistics.median(steps_s)
    return Decoded(num_requests, num_requests * NUM_OUTPUT / took_s, step_ms)


def first_token_s(engine: Engine, vocab: int) -> float:
    """Return the seconds to the first token of one prompt of LONG_PROMPT tokens."""
    submit(engine, prompts_of(1, LONG_PROMPT, vocab), 1)
    began_s = time.perf_counter()
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began_s


def busy_share(engine: Engine, num_requests: int, vocab: int) -> float:
    """The share of the time that the device computes, over some decode steps in the middle."""
    submit(engine, prompts_of(num_requests, NUM_PROMPT, vocab), NUM_OUTPUT)
    for _ in range(NUM_OUTPUT // 2):
        engine.step()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(NUM_PROFILED):
            engine.step()
        torch.cuda.synchronize()
        took_s = time.perf_counter() - began_s
    busy_us = sum(event.self_device_time_total for event in profile.key_averages())
    while engine.has_work:
        engine.step()
    return float(busy_us) / 1e6 / took_s


def load_peer(folder: Path, device: torch.device) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    torch.nn.Module.to(model, device)
    return model


def peer_tokens_s(model: PreTrainedModel, num_requests: int, vocab: int) -> float:
    """Output tokens a second of `generate_batch`."""
    prompts = prompts_of(num_requests, NUM_PROMPT, vocab)
    asked = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=NUM_OUTPUT, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    began_s = time.perf_counter()
    outputs = model.generate_batch(prompts, generation_config=asked)  # type: ignore[operator]
    took_s = time.perf_counter() - began_s
    num_tokens = sum(len(output.generated_tokens) for output in outputs.values())
    if num_tokens != num_requests * NUM_OUTPUT:
        raise RuntimeError(f"transformers gave {num_tokens} tokens")
    return num_tokens / took_s
