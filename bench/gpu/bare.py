"""Accepts a GPU on a machine that has PyTorch and no network, within one call of ten minutes.

    python3 -m bench.gpu.bare --wheels .gpu-wheels --out DIR

It installs the wheels that were brought along (`make gpu-wheels`) into a folder that goes again,
and runs both stages of the acceptance in the time that is left. Other options are the acceptance's.
Nothing but Python's standard library is imported here.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 540.0
PIP = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile")
NO_WHEELS = 2


def main() -> int:
    """Return the exit status of the acceptance."""
    about = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of `make gpu-wheels`")
    parser.add_argument("--out", type=Path, required=True, help="folder for records and tables")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="the install included")
    options, others = parser.parse_known_args()
    ends_s = time.monotonic() + options.budget_s
    wheels = sorted(options.wheels.glob("*.whl"))
    if not wheels:
        print(f"{options.wheels} has no wheels; `make gpu-wheels` makes them", file=sys.stderr)
        return NO_WHEELS
    with tempfile.TemporaryDirectory() as site:
        subprocess.run([sys.executable, *PIP, "--target", site, *map(str, wheels)], check=True)
        left_s = ends_s - time.monotonic()
        print(
            f"installed in {options.budget_s - left_s:.0f} s, {left_s:.0f} s are left", flush=True
        )
        paths = (str(ROOT / "src"), str(ROOT), site, os.environ.get("PYTHONPATH", ""))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "bench.gpu_acceptance", *others),
                *("--out", str(options.out), "--budget-s", str(left_s)),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
