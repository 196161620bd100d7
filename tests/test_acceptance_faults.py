"""Every check of correctness has a fault that it is to see, and what the fault breaks is there."""

from pathlib import Path

import pytest
from bench.gpu.listed import STAGES
from tools.acceptance_faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]


def test_each_check_of_correctness_has_a_fault() -> None:
    assert {check.name for check in STAGES["correctness"]} <= {fault.check for fault in FAULTS}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.check)
def test_a_fault_can_be_planted(fault: Fault, tmp_path: Path) -> None:
    copy = tmp_path / fault.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / fault.file).read_text())
    fault.plant(tmp_path)
    assert copy.read_text() != (ROOT / fault.file).read_text()
