"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, built from their sources."""

import shutil
import subprocess
from pathlib import Path

import pytest

import quire.models.native as native
from tests.instructions import library_of

SOURCES = Path(native.__file__).parent
FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma"),
        "-mavx512vnni",
    ],
}
FLAGS["amx"] = [*FLAGS["avx512"], "-mamx-tile", "-mamx-bf16", "-mamx-int8"]
DRIVERS = [
    *(
        (name, isa)
        for name in ("attention", "sampling", "bf16_storage", "w8a32", "fused")
        for isa in FLAGS
    ),
    *(
        (name, isa)
        for name in ("compressed_bf16", "w8a8", "find_candidates", "candidate_product")
        for isa in ("avx512", "amx")
    ),
]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(compiler: str, driver: Path, isa: str, program: Path) -> None:
    flags = ["-std=gnu++17", "-O1", "-g0", *SANITIZE, *FLAGS[isa], f"-DQUIRE_ISA={isa}"]
    command = [compiler, *flags, f"-I{SOURCES}", str(driver), "-o", str(program)]
    subprocess.run(command, check=True)


def has_sanitizers(compiler: str, folder: Path) -> bool:
    """Their runtimes are packages of their own on some machines."""
    source = folder / "nothing.cpp"
    source.write_text("int main() {}\n")
    command = [compiler, *SANITIZE, str(source), "-o", str(folder / "nothing")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("driver", "isa"), DRIVERS)
def test_kernel_stays_within_its_memory(driver: str, isa: str, tmp_path: Path) -> None:
    library_of(isa)
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    if not has_sanitizers(compiler, tmp_path):
        pytest.skip("g++ here has no sanitizer runtimes")
    program = tmp_path / "sanitized"
    build(compiler, Path(__file__).with_name(f"sanitized_{driver}.cpp"), isa, program)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "clean\n", "")
