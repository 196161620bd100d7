"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, built from their sources.

Every run has those that compile in a second or two, for the instructions of its machine; `make
long` has all of them, for all instruction sets.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

import quire.models.native as native
from tests.instructions import built_library, library_of
from tests.long import long_but_for

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
DRIVERS_FOLDER = Path(__file__).parent / "sanitized"
DRIVERS = [
    *(
        (name, isa)
        for name in (
            *("attention", "sampling", "bf16_storage", "w8a32", "grouped", "fused"),
            *("convolution", "delta_rule", "delta_net", "scans"),
        )
        for isa in FLAGS
    ),
    *((name, isa) for name in ("compressed_bf16", "w8a8", "w4a8") for isa in ("avx512", "amx")),
]
IN_EVERY_RUN = ("sampling", "bf16_storage", "w8a32", "fused", "delta_rule", "scans")
"""They have rows in pieces and ends of any size, as the others have."""
FEW, MANY = 25, 300
"""Random calls: of the kernels of this machine in every run, of all in `make long`."""
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


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("there is no g++ here")
    if not has_sanitizers(found, tmp_path_factory.mktemp("sanitizers")):
        pytest.skip("g++ here has no sanitizer runtimes")
    return found


def assert_stays_within(program: Path, num_cases: int) -> None:
    command = [str(program), str(num_cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "clean\n", "")


@long_but_for(IN_EVERY_RUN, "driver", dict.fromkeys(driver for driver, _ in DRIVERS))
def test_kernel_that_is_used_here_stays_within_its_memory(
    driver: str, compiler: str, tmp_path: Path
) -> None:
    """Built for the widest instructions of this CPU that it is written for."""
    here = [isa for name, isa in DRIVERS if name == driver and isa in built_library().isas]
    if not here:
        library_of("avx512")
    program = tmp_path / "sanitized"
    build(compiler, DRIVERS_FOLDER / f"{driver}.cpp", here[-1], program)
    assert_stays_within(program, FEW)


@pytest.mark.long
@pytest.mark.parametrize(("driver", "isa"), DRIVERS)
def test_kernel_stays_within_its_memory(
    driver: str, isa: str, compiler: str, tmp_path: Path
) -> None:
    library_of(isa)
    program = tmp_path / "sanitized"
    build(compiler, DRIVERS_FOLDER / f"{driver}.cpp", isa, program)
    assert_stays_within(program, MANY)
