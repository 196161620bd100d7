"""Measures the GPU path, kernels and whole models, against ceilings of the same run.

    python -m bench.gpu [--sizes 1b,8b] [--batches 1,32,128,256] [--folder DIR] [--without-peer]

Kernels: attention of a Llama 8B layer over bfloat16 K and V, decode against the speed of a copy,
prefill against a large matrix product. Models: random weights of Llama shapes, written to DIR; an
engine in this process, its decode steps against the time to read weights and K and V once; the
share of the time that the device computes; and, in turn with it, transformers' continuous batching.
`--device cpu --sizes tiny` shows that it runs.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from bench.cpu_attention import LLAMA, Case, build_layers, build_step, build_store
from bench.gpu_models import (
    LONG_PROMPT,
    NUM_OUTPUT,
    NUM_PROMPT,
    SIZES,
    build,
    busy_share,
    decode,
    first_token_s,
    kv_token_bytes,
    load_peer,
    make_checkpoint,
    peer_tokens_s,
)
from quire.models.attention.choice import build_attention
from quire.models.config import AttentionBackendName

REPEATS = 3
COPY_BYTES = {"cuda": 1 << 32, "cpu": 1 << 28}
PRODUCT_WIDTH = {"cuda": 8192, "cpu": 1024}
CASES = {
    "cuda": (
        Case(64, 4096, 1, LLAMA),
        Case(8, 32768, 1, LLAMA),
        Case(1, 8192, 8192, LLAMA),
        Case(1, 2048, 2048, LLAMA),
    ),
    "cpu": (Case(2, 256, 1, LLAMA), Case(1, 256, 256, LLAMA)),
}
NUM_LAYERS = 4
PEER_BATCH = 128


class Ceilings(NamedTuple):
    """`copy_gb_s` counts what is read and what is written."""

    copy_gb_s: float
    tflop_s: float


def seconds(act: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """The median, the device's own time on a GPU."""
    act()
    taken = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            act()
            end.record()
            end.synchronize()
            taken.append(float(begin.elapsed_time(end)) / 1e3)
        else:
            began_s = time.perf_counter()
            act()
            taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)


def measure_ceilings(device: torch.device) -> Ceilings:
    source = torch.ones(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    copy_s = seconds(lambda: target.copy_(source), device)
    width = PRODUCT_WIDTH[device.type]
    one, other = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
    product_s = seconds(lambda: one @ other, device)
    return Ceilings(2 * source.nbytes / copy_s / 1e9, 2 * width**3 / product_s / 1e12)


@torch.inference_mode()
def measure_kernels(device: torch.device, ceilings: Ceilings) -> None:
    for case in CASES[device.type]:
        layers = build_layers(case.shape, NUM_LAYERS)
        store = build_store(case, layers, device)
        backend = build_attention(store, AttentionBackendName.AUTO)
        took_s = seconds(build_step(backend, case, layers, device), device) / NUM_LAYERS
        gb_s, tflop_s = case.layer_bytes / took_s / 1e9, case.num_flops / took_s / 1e12
        print(
            f"{case.name}: {1e3 * took_s:.3f} ms a layer, {gb_s:.0f} GB/s "
            f"({gb_s / ceilings.copy_gb_s:.0%} of a copy), {tflop_s:.1f} TFLOP/s "
            f"({tflop_s / ceilings.tflop_s:.0%} of a product), {type(backend).__name__}",
            flush=True,
        )


class Plan(NamedTuple):
    device: torch.device
    batches: list[int]
    folder: Path
    has_peer: bool


def measure_model(name: str, plan: Plan, ceilings: Ceilings) -> None:
    size, folder = SIZES[name], plan.folder / name
    weight_bytes = make_checkpoint(folder, size, plan.device)
    share = 0.45 if plan.has_peer else 0.9
    engine = build(folder, plan.device, max(*plan.batches, PEER_BATCH), share)
    print(f"{name}: {weight_bytes / 1e9:.2f} GB of weights", flush=True)
    for batch in plan.batches:
        runs = [decode(engine, batch, size.vocab) for _ in range(REPEATS)]
        step_ms = statistics.median(run.step_ms for run in runs)
        context = NUM_PROMPT + NUM_OUTPUT / 2
        num_bytes = weight_bytes + batch * context * kv_token_bytes(size)
        floor_ms = num_bytes / ceilings.copy_gb_s / 1e6
        print(
            f"  batch {batch}: {statistics.median(run.tokens_s for run in runs):.0f} tok/s, "
            f"step {step_ms:.2f} ms, {step_ms / floor_ms:.2f} of its bytes' floor",
            flush=True,
        )
        if plan.device.type == "cuda":
            busy = busy_share(engine, batch, size.vocab)
            print(f"    the device computes {busy:.1%} of the time", flush=True)
    first_s = statistics.median(first_token_s(engine, size.vocab) for _ in range(REPEATS))
    print(f"  first token of a prompt of {LONG_PROMPT}: {1e3 * first_s:.0f} ms", flush=True)
    if plan.has_peer:
        peer, batch = load_peer(folder, plan.device), min(max(plan.batches), PEER_BATCH)
        peer_tokens_s(peer, batch, size.vocab)
        ratios = []
        for _ in range(REPEATS):
            ours = decode(engine, batch, size.vocab).tokens_s
            theirs = peer_tokens_s(peer, batch, size.vocab)
            ratios.append(ours / theirs)
            print(f"  at {batch}: {ours:.0f} tok/s, transformers {theirs:.0f}", flush=True)
        print(f"  ratio {statistics.median(ratios):.2f}", flush=True)
    engine.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="1b,8b", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--batches", default="1,32,128,256")
    parser.add_argument("--folder", type=Path, help="for checkpoints; a temporary one by default")
    parser.add_argument("--without-peer", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here: --device cpu --sizes tiny shows that it runs")
    ceilings = measure_ceilings(device)
    print(f"copy {ceilings.copy_gb_s:.0f} GB/s, product {ceilings.tflop_s:.1f} TFLOP/s", flush=True)
    measure_kernels(device, ceilings)
    batches = [int(batch) for batch in options.batches.split(",")]
    with tempfile.TemporaryDirectory() as made:
        plan = Plan(device, batches, options.folder or Path(made), not options.without_peer)
        for name in options.sizes.split(","):
            measure_model(name, plan, ceilings)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
