"""Breaks what each check of the GPU's acceptance looks for, in a copy of the project, and sees the
check's rehearsal fail: `python -m tools.acceptance_faults [CHECK ...]`, or `make gpu-faults`.

A check that passes over a fault would pass over it on a GPU too, so that this ends with 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.listed import STAGES
from bench.gpu.log import Attempt, Log, Status

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "bench", "tests")
JOBS = 2
TOKENS = "src/quire/models/attention/triton/token_kernel.py"
CHUNKS = "src/quire/models/attention/triton/chunk_kernel.py"
SHARED = "src/quire/models/attention/triton/shared_kernel.py"
WRITE = "src/quire/models/attention/triton/write_kernel.py"
WIDEN = "src/quire/models/attention/triton/widen_kernel.py"
NUMBERS = "src/quire/models/attention/triton/number_kernel.py"
GRAPHS = "src/quire/models/graphs/buffers.py"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a check is to see: `old`, which `file` has once, becomes `new`."""

    check: str
    what: str
    file: str
    old: str
    new: str

    def plant(self, root: Path) -> None:
        """Break the copy at `root`. Raises ValueError unless `old` is there once."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


FAULTS = (
    Fault(
        "attention-float16",
        "an edge tile is taken for whole",
        CHUNKS,
        "(num_past + first + 1 - begin) // KEYS",
        "(num_past + first + KEYS - begin) // KEYS",
    ),
    Fault(
        "attention-bfloat16",
        "a window is one key longer",
        SHARED,
        "position - (WINDOW_SIZE - 1)",
        "position - WINDOW_SIZE",
    ),
    Fault(
        "attention-float16",
        "scores are a hundredth too large",
        CHUNKS,
        "factor = cap if HAS_CAP else scale\n",
        "factor = cap if HAS_CAP else scale * 1.01\n",
    ),
    Fault(
        "attention-float32",
        "vectors are written to the slot after theirs",
        WRITE,
        "to = slot * HEADS + head",
        "to = (slot + 1) * HEADS + head",
    ),
    Fault(
        "attention-bfloat16",
        "a part of a context is added up as if it were another program's",
        "src/quire/models/attention/triton/combine_kernel.py",
        "slot_of(program, program - first)",
        "slot_of(program + 1, program - first)",
    ),
    Fault(
        "attention-int8",
        "a value is multiplied by the scale of its key",
        TOKENS,
        "read_scales(value_scales, rows",
        "read_scales(key_scales, rows",
    ),
    Fault("attention-fp8", "numbers are read too small", WIDEN, "wide * 256.0", "wide * 255.0"),
    Fault(
        "attention-int8",
        "numbers are not rounded to the nearest",
        NUMBERS,
        "((number + 12582912.0) - 12582912.0).to(tl.int8)",
        "number.to(tl.int8)",
    ),
    Fault(
        "attention-fresh",
        "a window is one key longer",
        "src/quire/models/attention/triton/fresh.py",
        "else layer.window_size - 1\n",
        "else layer.window_size\n",
    ),
    Fault(
        "expert-products",
        "rows are multiplied by the weight of another expert",
        "src/quire/models/experts/product_kernel.py",
        "weight_at = expert.to(tl.int64) * EXPERT_STRIDE",
        "weight_at = (expert.to(tl.int64) ^ 1) * EXPERT_STRIDE",
    ),
    Fault(
        "recurrent-layers",
        "a state is decayed once more where a piece ends",
        "src/quire/models/recurrent/triton/scan_kernel.py",
        "(1, 4 * VECTOR)), state, inside & (write > 0))",
        "(1, 4 * VECTOR)), state * 0.99, inside & (write > 0))",
    ),
    Fault(
        "graph-recurrent",
        "a request of a captured step goes on from the null state",
        GRAPHS,
        "            buffer[:count].copy_(ids)\n",
        "            buffer[:count].copy_(ids if buffer is self.state_writes else 0 * ids)\n",
    ),
    Fault(
        "grouped-products",
        "numbers are multiplied by the scales of the first group",
        "src/quire/models/layers/triton/grouped_kernel.py",
        "group = group_at + (first // GROUP)[:, None]",
        "group = group_at + (first // SIZE)[:, None]",
    ),
    Fault(
        "fused-layers",
        "a head is turned by the angles of another token",
        "src/quire/models/layers/triton/row_kernel.py",
        "    cos += row * ROTARY",
        "    cos += (row ^ 1) * ROTARY",
    ),
    Fault(
        "sampled-tokens",
        "of equally likely tokens one more is kept",
        "src/quire/engine/sampling/triton/sample_kernel.py",
        "num_at = ((wanted - earlier + own - 1) // own).to(tl.int32)",
        "num_at = ((wanted - earlier + own - 1) // own).to(tl.int32) + 1",
    ),
    Fault(
        "swapped-blocks",
        "a half of the staging memory is filled before it was emptied",
        "src/quire/models/kv/staged_queue.py",
        "            user.wait(half.free)\n",
        "            pass\n",
    ),
    Fault(
        "graph-llama",
        "a replayed step computes the positions that were captured",
        GRAPHS,
        "        self.positions[:count].copy_(batch.positions)\n",
        "",
    ),
    Fault(
        "graph-gemma2",
        "layers of the second group write where the first group's do",
        GRAPHS,
        "self.slots[index, :count].copy_(slots)",
        "self.slots[index, :count].copy_(batch.slots[0])",
    ),
    Fault(
        "graph-gpt-oss",
        "a replayed step sees the contexts that were captured",
        GRAPHS,
        "        torch.add(batch.positions, 1, out=self.context_lens[:count])\n",
        "",
    ),
    Fault(
        "graph-deepseek",
        "a replayed step reads the blocks that were captured",
        GRAPHS,
        "            self.block_tables[index, :count, : table.shape[1]].copy_(table)\n",
        "",
    ),
    Fault(
        "graph-long-rope",
        "rotary angles are worked out by the host",
        "src/quire/models/layers/frozen_rotary.py",
        "position_ids[..., None].float()",
        "torch.tensor(position_ids.tolist(), device=x.device)[..., None].float()",
    ),
    Fault(
        "captures",
        "the end of capturing is not told",
        "src/quire/models/graphs/capture.py",
        "    report(2 * len(falling))\n",
        "",
    ),
    Fault(
        "graph-refused",
        "a capture that could not be ended still allocates",
        "src/quire/models/graphs/capture.py",
        "        self._pool.end_allocation()\n",
        "",
    ),
    Fault(
        "graph-pieces",
        "keys of a step in pieces are stored for the token after theirs",
        "src/quire/models/graphs/piece_attention.py",
        "        attended.copy_(self._step.attend(layer, query, key, value, sinks))\n",
        "        attended.copy_(self._step.attend(layer, query, key.roll(1, 0), value, sinks))\n",
    ),
    Fault(
        "graph-pieces",
        "a step in pieces computes the logits of the tokens that were captured",
        "src/quire/models/graphs/pieces.py",
        "        _fill(self.logits_indices[:rows], batch.logits_indices)\n",
        "",
    ),
    Fault(
        "engine-texts",
        "the blocks of a request that is swapped in lie in another order",
        "src/quire/models/kv/copy_queue.py",
        "read, written = torch.tensor(batch.sources),",
        "read, written = torch.tensor(batch.sources[::-1]),",
    ),
    Fault(
        "engine-waits",
        "the runner looks at the logits",
        "src/quire/engine/runner.py",
        "            launched.logits, launched.states = output.rows\n",
        "            launched.logits, launched.states = output.rows\n"
        "            float(launched.logits.sum())\n",
    ),
    Fault(
        "sanitizer",
        "vectors are written to the slot after theirs",
        WRITE,
        "to = slot * HEADS + head",
        "to = (slot + 1) * HEADS + head",
    ),
    Fault(
        "fidelity",
        "tokens are written to the slots after theirs",
        "src/quire/engine/runner.py",
        "slots += positions % block_size",
        "slots += (positions + 1) % block_size",
    ),
    Fault(
        "device",
        "a copy leaves a number out",
        "bench/gpu/speed/ceilings.py",
        "target = torch.empty_like(source).copy_(source)",
        "target = torch.zeros_like(source); target[1:].copy_(source[1:]); target[1] = 0",
    ),
    Fault(
        "receipt",
        "the receipt says half of what K and V take",
        "src/quire/engine/startup/sizing.py",
        'ReceiptLine("kv", plan.capacity.num_blocks * footprint.block_bytes)',
        'ReceiptLine("kv", plan.capacity.num_blocks * footprint.block_bytes // 2)',
    ),
    Fault(
        "sampling",
        "seconds are taken for nanoseconds",
        "bench/gpu/speed/timing.py",
        "return Timing(*(each_s / num_calls for each_s in self))",
        "return Timing(*(each_s / num_calls / 1e9 for each_s in self))",
    ),
)


def rehearse(fault: Fault) -> Attempt | None:
    """Return how the check ends in a copy that has the fault."""
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder) / "project", Path(folder) / "out"
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "records")
            shutil.copytree(ROOT / name, root / name, ignore=ignored)
        fault.plant(root)
        command = [sys.executable, "-m", "bench.gpu_acceptance", "--rehearse"]
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        subprocess.run(
            [*command, "--only", fault.check, "--out", str(out)],
            cwd=root,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        logs = [Log(out / f"{stage}.jsonl") for stage in STAGES]
        attempts = {name: each for log in logs for name, each in log.attempts().items()}
        return attempts.get(fault.check)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the faults, two at a time, and tell what each check said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checks", nargs="*")
    wanted = parser.parse_args(arguments).checks
    faults = [fault for fault in FAULTS if not wanted or fault.check in wanted]
    num_missed = 0
    with ThreadPoolExecutor(JOBS) as pool:
        for fault, attempt in zip(faults, pool.map(rehearse, faults), strict=True):
            is_seen = attempt is not None and attempt.end.status is not Status.PASSED
            num_missed += not is_seen
            found = "seen" if is_seen else "MISSED"
            print(f"{fault.check}: {found}: {fault.what}: {_said(attempt)}", flush=True)
    print(f"{len(faults) - num_missed} of {len(faults)} faults were seen")
    return 1 if num_missed else 0


def _said(attempt: Attempt | None) -> str:
    """Return the first fault that a check found, or else the last line that it printed."""
    if attempt is None:
        return "it did not run"
    faults = [f"{each.what}: {each.fault}" for each in attempt.findings if each.fault is not None]
    lines = attempt.end.tail.strip().splitlines()
    said = faults[0] if faults else f"{attempt.end.status}: {lines[-1] if lines else ''}"
    return said.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
