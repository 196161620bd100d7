"""Figures beside their ceilings: the least time that bytes and operations take at what the device
was seen to do, and the share of it that a measured time reaches (the roofline model, Williams and
others, Communications of the ACM 52-4, 2009)."""

from dataclasses import dataclass
from typing import NamedTuple

from bench.gpu.check import Figure, Finding
from bench.gpu.speed.timing import Timing

MOST_SHARE = 1.1
"""Two measurements of one thing differ by some hundredths."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a device: 10^9 bytes and 10^12 operations a second."""

    gb_s: float
    tflop_s: float


class Work(NamedTuple):
    """The work that no program can do without: bytes read and written once, and operations."""

    num_bytes: float
    num_flops: float = 0.0

    def bytes_s(self, rates: Rates) -> float:
        return self.num_bytes / rates.gb_s / 1e9

    def flops_s(self, rates: Rates) -> float:
        return self.num_flops / rates.tflop_s / 1e12

    def floor_s(self, rates: Rates) -> float:
        """Return the least seconds: reading and computing go on beside each other."""
        return max(self.bytes_s(rates), self.flops_s(rates))


def judge(what: str, timing: Timing, work: Work, rates: Rates, **more: Figure) -> Finding:
    """Return a finding that states a time beside its floor, and the rate that binds beside its
    ceiling; `more` figures follow. What is faster than its ceiling is a fault: of the clock, of
    what was counted, or of the ceiling."""
    took_s, floor_s = timing.median_s, work.floor_s(rates)
    figures: dict[str, Figure] = {"ms": 1e3 * took_s, "floor_ms": 1e3 * floor_s}
    if work.bytes_s(rates) >= work.flops_s(rates):
        figures |= {"gb_s": work.num_bytes / took_s / 1e9, "ceiling_gb_s": rates.gb_s}
    else:
        figures |= {"tflop_s": work.num_flops / took_s / 1e12, "ceiling_tflop_s": rates.tflop_s}
    share = floor_s / took_s
    shares: dict[str, Figure] = {"share": share, "spread": timing.spread}
    fault = "faster than its ceiling" if share > MOST_SHARE else None
    return Finding(what, {**figures, **shares, **more}, fault)
