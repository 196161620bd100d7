"""Measures what the machine could do at best: the ceilings that throughput is judged against."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

ROOFLINE_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Best of a few repeats on all cores.

    read_gb_s: 10^9 bytes a second, reading a 2 GiB tensor once (the best of sum, dot and max).
    bf16_gflop_s: 10^9 operations a second of square bf16 matrix products.
    """

    read_gb_s: float
    bf16_gflop_s: float

    def or_better(self, other: "Ceilings") -> "Ceilings":
        """The higher of both in each respect: noise only ever lowers them."""
        return Ceilings(
            read_gb_s=max(self.read_gb_s, other.read_gb_s),
            bf16_gflop_s=max(self.bf16_gflop_s, other.bf16_gflop_s),
        )

    def decode_step_floor_ms(self, num_weight_bytes: int) -> float:
        """The least time of a decode step of any batch size: reading every weight once."""
        return num_weight_bytes / self.read_gb_s / 1e6


def weight_bytes(model_dir: Path) -> int:
    """Bytes of the checkpoint's safetensors files."""
    return sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))


def measure_ceilings() -> Ceilings:
    """Measure in a process of its own, so that its tensor and threads are gone afterwards."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.roofline"],
        cwd=Path(__file__).resolve().parents[1],
        stdout=subprocess.PIPE,
        check=True,
        timeout=ROOFLINE_TIMEOUT_S,
    )
    return msgspec.json.decode(done.stdout, type=Ceilings)
