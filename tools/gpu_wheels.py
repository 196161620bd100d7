"""Fetches the wheels that a machine with a GPU, but without a network, lacks for
`bench/gpu_acceptance.py`: `python -m tools.gpu_wheels FOLDER` (or `make gpu-wheels`).

Such a machine has Python 3.12 on x86-64 Linux with PyTorch 2.11, Triton 3.6, NumPy, safetensors,
tokenizers and pytest, and an older transformers. There they are used by

    python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl
    PYTHONPATH=src:SITE python3 -m bench.gpu_acceptance ...
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENGINE = ("msgspec", "psutil", "transformers", "xxhash")
TESTS = ("hypothesis", "pytest-timeout", "sortedcontainers")
NAMES = (*ENGINE, *TESTS)
"""Distributions, at the versions of constraints.txt: what the engine, and the tests that are run as
checks, import and the machine lacks. Only the server needs FastAPI, pydantic and uvicorn."""
MAX_BYTES = 40 << 20
PLATFORM = (
    *("--only-binary=:all:", "--implementation=cp", "--python-version=3.12"),
    *("--abi=cp312", "--abi=abi3", "--abi=none"),
    *("--platform=manylinux_2_28_x86_64", "--platform=manylinux2014_x86_64"),
)


def main(arguments: Sequence[str]) -> int:
    """Return 1 where the wheels are too large to be brought along."""
    folder = Path(*arguments)
    for stale in folder.glob("*.whl"):
        stale.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    where = ["--dest", str(folder), "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *PLATFORM, *where, *NAMES], check=True)
    num_bytes = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    print(f"{folder}: {num_bytes / 2**20:.1f} MiB")
    if num_bytes > MAX_BYTES:
        print(f"that is more than {MAX_BYTES >> 20} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
