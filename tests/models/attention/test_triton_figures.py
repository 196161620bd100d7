"""Figures of compiled programs: waits of loops, programs at once, and what falls short."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from tools.triton_figures.measure import SM, Figures, read_waits
from tools.triton_figures.program import Program

LOOPS = """\
  tt.func public @attend() {
    %first = ttg.async_wait %block {num = 7 : i32}
    %sums:2 = scf.for %tile = %c0 to %many step %c1 iter_args(%kept = %none) -> (i32, i32)  : i32 {
      %kept_1 = ttg.async_wait %kept_0, %block_0 {num = 3 : i32}
      scf.if %last {
        %kept_2 = ttg.async_wait %kept_1 {num = 2 : i32}
      }
      scf.yield %kept_1, %kept_1 : i32, i32
    }
    scf.for %row = %c0 to %many step %c1 {
      tt.store %out, %row
    }
    %other = scf.for %tile = %c0 to %many step %c1 iter_args(%kept = %none) -> (i32)  : i32 {
      %kept_3 = ttg.async_wait %kept {num = 0 : i32}
    } {tt.num_stages = 3 : i32}
    %last = ttg.async_wait {num = 9 : i32}
  }
"""
FINE = Figures(128, 0, 64 * 1024, 2, (300,), (3, 3))


def program(*, least_resident: int = 1, least_waits: int = 0) -> Program:
    return Program(
        "chunks", None, {}, {}, 8, least_resident=least_resident, least_waits=least_waits
    )


def test_waits_are_those_within_loops_that_load() -> None:
    assert read_waits(LOOPS) == (2, 0)


@pytest.mark.parametrize(
    ("capability", "num_warps", "num_registers", "shared_kib", "resident"),
    [
        (90, 8, 128, 0, 2),  # 65536 registers
        (90, 8, 129, 0, 1),  # eight more for each thread
        (90, 4, 221, 113, 2),  # 228 KiB, of which each takes one more
        (90, 4, 221, 114, 1),
        (86, 4, 32, 0, 12),  # 48 warps
        (86, 1, 32, 0, 16),  # so many programs
    ],
)
def test_so_many_programs_run_at_once(
    capability: int, num_warps: int, num_registers: int, shared_kib: int, resident: int
) -> None:
    assert SM[capability].num_resident(num_warps, num_registers, 1024 * shared_kib) == resident


def test_each_fault_is_told() -> None:
    assert FINE.faults(program(least_resident=2, least_waits=2), 90) == []
    spilling = FINE._replace(num_spilled_bytes=8)
    assert spilling.faults(program(), 90) == ["8 B of registers spill"]
    assert FINE._replace(num_shared_bytes=100 * 1024).faults(program(), 86) == [
        "shared memory is over 99 KiB"
    ]
    (few,) = FINE.faults(program(least_resident=4), 90)
    assert few == "2 programs run at once, 4 are counted on"
    (waiting,) = FINE._replace(waits=(3, 0)).faults(program(least_waits=2), 90)
    assert waiting == "a loop waits until 0 loads are under way"
