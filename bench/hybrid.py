"""Counts the long requests that a mixed model serves at once with layer groups, and without.

    python -m bench.hybrid [--length 8000] [--requests 24] [--repeats 1]

One small random model of the Gemma-3 family, five layers with a window of 512 for each one that
sees all, and the same bytes of KV memory both times: as many as six requests need without groups.
All requests come at once; each is a prompt of `length` tokens and 512 tokens of output. Prints the
most that ran at once, the preemptions, and the time until all were answered.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.models.config import ModelDtype
from quire.scheduler.request import NewRequest, Sampling, Stopping

NUM_OUTPUTS = 512
NUM_LAYERS, WINDOW, VOCAB_SIZE = 12, 512, 512
HEADS, HEAD_DIM = 1, 32
TOKEN_BYTES = NUM_LAYERS * 2 * HEADS * HEAD_DIM * 4
FITTING_WITHOUT_GROUPS = 6


class Outcome(NamedTuple):
    max_running: int
    num_preemptions: int
    seconds: float


def make_model(folder: Path, max_model_len: int) -> None:
    """Random weights in the 5:1 pattern of Gemma 3 (Gemma 3 technical report, 2025, section 2)."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        sliding_window=WINDOW,
        max_position_embeddings=max_model_len,
    )
    Gemma3ForCausalLM(config).save_pretrained(folder)


def serve(folder: Path, *, length: int, num_requests: int, hybrid: bool) -> Outcome:
    max_model_len = length + NUM_OUTPUTS
    config = EngineConfig(
        ModelConfig(str(folder), device="cpu", dtype=ModelDtype.FLOAT32),
        memory=MemoryConfig(
            kv_cache_memory_bytes=FITTING_WITHOUT_GROUPS * (max_model_len + 32) * TOKEN_BYTES,
            enable_prefix_caching=False,
            disable_hybrid_kv_cache_manager=not hybrid,
        ),
        scheduling=SchedulingConfig(
            max_model_len=max_model_len, max_num_seqs=num_requests, max_num_batched_tokens=512
        ),
    )
    engine, _ = build_quietly(config)
    generator = torch.Generator().manual_seed(1)
    for index in range(num_requests):
        tokens = torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
        new = NewRequest(
            str(index), tuple(tokens), Sampling(temperature=0.0), Stopping(NUM_OUTPUTS)
        )
        refusal = engine.submit(new)
        if refusal is not None:
            raise ValueError(refusal.message)
    began, max_running = time.perf_counter(), 0
    while engine.has_work:
        engine.step()
        max_running = max(max_running, engine.stats.num_running)
    seconds = time.perf_counter() - began
    return Outcome(max_running, engine.stats.num_preemptions, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hybrid", description=__doc__)
    parser.add_argument("--length", type=int, default=8000, help="prompt tokens of a request")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    found: dict[bool, list[Outcome]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        make_model(Path(name), args.length + NUM_OUTPUTS)
        for _ in range(args.repeats):
            for hybrid, outcomes in found.items():
                outcome = serve(
                    Path(name), length=args.length, num_requests=args.requests, hybrid=hybrid
                )
                outcomes.append(outcome)
                print(f"{'layer groups' if hybrid else 'one group':12} {outcome}", flush=True)
    ran = {hybrid: median(o.max_running for o in found[hybrid]) for hybrid in found}
    print(
        f"{args.requests} requests of {args.length} + {NUM_OUTPUTS} tokens: at most "
        f"{ran[True]:.0f} at once with layer groups, {ran[False]:.0f} without: "
        f"{ran[True] / ran[False]:.2f}x"
    )


if __name__ == "__main__":
    main()
