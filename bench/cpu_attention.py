"""Milliseconds of one layer's paged attention on this CPU, the C++ kernel against the reference.

    python -m bench.cpu_attention [--repeats 20]

Layers of Qwen2.5-0.5B, of a 15M model without shared K/V heads, and of one like Llama 8B. Every
call takes the next of several layers, so that K and V come from memory as they do in a step. Blocks
are shuffled, as a pool's are after long use, or in runs, as a fresh pool gives them. The two take
turns, with reads of plain memory between them; medians.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.attention.backend import AttentionBackend
from quire.models.attention.cpu import CPUAttention
from quire.models.attention.reference import ReferenceAttention
from quire.models.batch import Batch
from quire.models.config import (
    QUANTISED,
    SCALE_BYTES,
    KVCacheDtype,
    KVOptions,
    KVSize,
    LayerFacts,
    ModelFacts,
)
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store
from quire.models.native import library

CPU = torch.device("cpu")
BLOCK_SIZE = 16
NUM_BYTES = 1 << 28
"""The bytes of K and V in all layers together are at least these: several times a cache."""
NUM_READ_FLOATS = 1 << 26


class Shape(NamedTuple):
    """The shape of a layer's heads."""

    num_heads: int
    num_kv_heads: int
    width: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def name(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.num_heads}/{self.num_kv_heads} heads of {self.width}, {dtype}"


QWEN = Shape(14, 2, 64)
SMALL = Shape(6, 6, 48)
SMALL_FLOAT32 = Shape(6, 6, 48, torch.float32)
LLAMA = Shape(32, 8, 128)


class Case(NamedTuple):
    """`num_seqs` contexts of `length`, the last `num_new` of each computed in this step."""

    num_seqs: int
    length: int
    num_new: int
    shape: Shape = QWEN
    is_in_runs: bool = False
    kept_as: KVCacheDtype = KVCacheDtype.AUTO

    @property
    def name(self) -> str:
        order = ", blocks in runs" if self.is_in_runs else ""
        if self.kept_as.is_quantised:
            order += f", K and V in {self.kept_as}"
        if self.num_new == 1:
            return f"decode {self.num_seqs} x {self.length}, {self.shape.name}{order}"
        past = self.length - self.num_new
        return f"prefill {self.num_new} after {past}, {self.shape.name}{order}"

    @property
    def layer_bytes(self) -> int:
        row_bytes = self.shape.width * self.shape.dtype.itemsize
        if self.kept_as.is_quantised:
            row_bytes = self.shape.width + SCALE_BYTES
        return self.num_seqs * self.length * self.shape.num_kv_heads * row_bytes * 2

    @property
    def num_flops(self) -> int:
        """Return the operations of both products, of what is seen alone."""
        num_seen = self.num_new * (2 * self.length - self.num_new + 1) // 2
        return self.num_seqs * num_seen * self.shape.num_heads * self.shape.width * 4


CASES = (
    *(Case(32, 512, 1), Case(32, 512, 1, is_in_runs=True)),
    *(Case(8, 4096, 1), Case(8, 4096, 1, is_in_runs=True), Case(1, 16384, 1)),
    *(Case(64, 96, 1, shape) for shape in (SMALL, SMALL_FLOAT32)),
    *(Case(32, 256, 1, shape) for shape in (SMALL, SMALL_FLOAT32)),
    Case(16, 1024, 1, LLAMA),
    *(Case(32, 512, 1, kept_as=name) for name in QUANTISED),
    *(Case(16, 1024, 1, LLAMA, kept_as=name) for name in QUANTISED),
    *(Case(1, 2560, 512, kept_as=name) for name in KVCacheDtype),
)


def build_layers(shape: Shape, num_layers: int) -> tuple[LayerFacts, ...]:
    width = shape.width
    return tuple(
        LayerFacts(index, shape.num_kv_heads, width, width, width**-0.5)
        for index in range(num_layers)
    )


def build_batch(case: Case, device: torch.device = CPU) -> Batch:
    """None of the blocks is the null block."""
    per_seq = -(-case.length // BLOCK_SIZE)
    ids = list(range(case.num_seqs * per_seq, 0, -1))
    if not case.is_in_runs:
        random.Random(0).shuffle(ids)
    table = torch.tensor(ids, dtype=torch.int32).view(case.num_seqs, per_seq)
    new = torch.arange(case.length - case.num_new, case.length)
    slots = table[:, new // BLOCK_SIZE].long() * BLOCK_SIZE + new % BLOCK_SIZE
    num_tokens = case.num_seqs * case.num_new
    return Batch(
        input_ids=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        positions=new.repeat(case.num_seqs).to(device),
        slots=(slots.flatten().to(device),),
        block_tables=(table.to(device),),
        query_starts=tuple(range(0, num_tokens + 1, case.num_new)),
        context_lens=(case.length,) * case.num_seqs,
        logits_indices=torch.zeros(0, dtype=torch.int64, device=device),
    )


def build_store(
    case: Case,
    layers: tuple[LayerFacts, ...],
    device: torch.device = CPU,
    kept_as: KVCacheDtype = KVCacheDtype.AUTO,
) -> KVStore:
    dtype = case.shape.dtype
    name = str(dtype).removeprefix("torch.")
    facts = ModelFacts("bench", layers, 2, case.length, (), name, dtype.itemsize)
    num_blocks = case.num_seqs * -(-case.length // BLOCK_SIZE) + 1
    store = build_kv_store(
        facts.layout(KVOptions(kept_as)),
        KVSize(num_blocks, BLOCK_SIZE),
        codec=choose_codec(kept_as, dtype),
        device=device,
    )
    for tensor in store.tensors:
        tensor.normal_() if tensor.is_floating_point() else tensor.random_(-90, 90)
    return store


def build_step(
    backend: AttentionBackend,
    case: Case,
    layers: tuple[LayerFacts, ...],
    device: torch.device = CPU,
) -> Callable[[], object]:
    """A whole step: every layer once."""
    batch, shape = build_batch(case, device), case.shape
    query, key, value = (
        torch.randn(len(batch.positions), heads, shape.width, dtype=shape.dtype, device=device)
        for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    )

    def step() -> Tensor:
        running = backend.begin(batch)
        for layer in layers:
            out = running.attend(layer, query, key, value)
        return out

    return step


def seconds(act: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    act()
    return time.perf_counter() - start_s


def measure(case: Case, backends: dict[str, Callable[[KVStore], AttentionBackend]], n: int) -> str:
    """One line for each backend: ms per layer, GB/s of K and V, share of the read bandwidth."""
    num_layers = max(2, -(-NUM_BYTES // case.layer_bytes)) if case.num_new == 1 else 4
    layers = build_layers(case.shape, num_layers)
    store = build_store(case, layers, kept_as=case.kept_as)
    floats = torch.ones(NUM_READ_FLOATS)
    acts = {name: build_step(build(store), case, layers) for name, build in backends.items()}
    times_s: dict[str, list[float]] = {name: [] for name in [*acts, "read"]}
    for act in acts.values():
        act()
    for _ in range(n):
        times_s["read"].append(min(seconds(floats.sum) for _ in range(3)))
        for name, act in acts.items():
            times_s[name].append(seconds(act) / len(layers))
    read_gb_s = floats.nbytes / statistics.median(times_s["read"]) / 1e9
    lines = [f"{case.name}: reads of memory {read_gb_s:.1f} GB/s"]
    for name in acts:
        took_s = statistics.median(times_s[name])
        gb_s = case.layer_bytes / took_s / 1e9
        gflop_s = case.num_flops / took_s / 1e9
        lines.append(
            f"  {name:20} {1e3 * took_s:8.3f} ms (least {1e3 * min(times_s[name]):.3f})  "
            f"{gb_s:6.1f} GB/s ({gb_s / read_gb_s:4.0%})  {gflop_s:6.0f} GFLOP/s"
        )
    return "\n".join(lines)


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--without-reference", action="store_true")
    options = parser.parse_args()
    kernels = library()
    if kernels is None:
        parser.error("the C++ kernels were not built")
    backends: dict[str, Callable[[KVStore], AttentionBackend]] = {
        f"cpu ({kernels.isa})": lambda store: CPUAttention(store, kernels),
    }
    if not options.without_reference:
        backends["reference"] = ReferenceAttention
    print(f"{torch.get_num_threads()} threads")
    for case in CASES:
        print(measure(case, backends, options.repeats))


if __name__ == "__main__":
    main()
