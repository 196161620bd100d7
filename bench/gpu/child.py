"""The process of one check: `python -m bench.gpu.child NAME MODULE:FUNCTION --device D ...`.

It writes each finding as it comes, and ends with FAULTY if any has a fault.
"""

import argparse
import sys
from pathlib import Path

import torch
from tests.interpreter import spare_the_interpreter

from bench.gpu.check import Place, load
from bench.gpu.log import Log

FAULTY = 3
"""An exit status that no crash of Python's has."""


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("run", help="module:function")
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if options.rehearse:
        spare_the_interpreter()
    place = Place(torch.device(options.device), options.rehearse, options.folder)
    log, is_right = Log(options.log), True
    for finding in load(options.run)(place):
        log.add_finding(options.name, finding)
        print(finding, flush=True)
        is_right &= finding.fault is None
    return 0 if is_right else FAULTY


if __name__ == "__main__":
    sys.exit(main())
