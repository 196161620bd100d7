"""Does the wheel work where there is no checkout? `python -m tools.check_wheel WHEEL [PIP_ARG ...]`

Its content is compared with `src`; then it is installed with its dependencies in a new environment
outside the checkout, every module is imported there, and the `quire` command is asked its version.
Modules of what a plain installation lacks may fail to import for its lack alone: Triton comes with
the PyTorch of GPUs, OpenTelemetry with the extra `otel`, Ray with the extra `ray`, the libraries of
`quire.workbench.terminal` with the extra `terminal`.
"""

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
DATA = (
    "quire/py.typed",
    "quire/models/bundled/config.json",
    "quire/models/bundled/model.safetensors",
    "quire/models/bundled/tokenizer.json",
    "quire/models/bundled/tokenizer_config.json",
)
MAX_WHEEL_BYTES = 11 << 20

IMPORT_ALL = """
import importlib, sys
from pathlib import Path

import quire

LACKING = ("httpx", "opentelemetry", "prompt_toolkit", "ray", "rich", "triton")

home = Path(quire.__file__).parent
assert home.is_relative_to(sys.prefix), f"{home} is not in {sys.prefix}"
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LACKING:
            raise
print(f"{len(sys.argv) - 1} modules imported from {home}")
"""


def module_files() -> Iterator[str]:
    """The paths in the wheel of all modules that `src` holds."""
    src = ROOT / "src"
    for path in sorted((src / "quire").rglob("*.py")):
        yield path.relative_to(src).as_posix()


def page_files() -> Iterator[str]:
    """The paths in the wheel of all files of the page."""
    src = ROOT / "src"
    for path in sorted((src / "quire/server/app/page/static").iterdir()):
        yield path.relative_to(src).as_posix()


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def faults_of(wheel: Path) -> list[str]:
    """Return what the wheel lacks or has too much of, in sentences."""
    modules = set(module_files())
    with ZipFile(wheel) as archive:
        names = {info.filename for info in archive.infolist() if not info.is_dir()}
    packaged = {name for name in names if name.endswith(".py")}
    faults = [f"{name} is missing" for name in sorted({*modules, *page_files(), *DATA} - names)]
    faults += [f"{name} is not in src" for name in sorted(packaged - modules)]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        faults.append("the LICENSE is missing")
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        faults.append(f"{wheel.stat().st_size} bytes, at most {MAX_WHEEL_BYTES} are allowed")
    return faults


def install_and_import(wheel: Path, pip_args: Sequence[str]) -> None:
    """Install and import in a new environment, from a folder that holds nothing else."""
    with tempfile.TemporaryDirectory(prefix="quire-wheel-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "-qq", "--no-compile"]
        subprocess.run([*pip, *pip_args, str(wheel)], check=True)
        neutral = place / "neutral"
        neutral.mkdir()
        modules = [module_name(path) for path in module_files()]
        subprocess.run([python, "-I", "-c", IMPORT_ALL, *modules], check=True, cwd=neutral)
        quire = python.with_name("quire")
        subprocess.run([quire, "--version"], check=True, cwd=neutral)


def main(argv: Sequence[str]) -> int:
    wheel = Path(argv[0]).resolve()
    faults = faults_of(wheel)
    for fault in faults:
        print(f"{wheel.name}: {fault}", file=sys.stderr)
    if faults:
        return 1
    install_and_import(wheel, argv[1:])
    print(f"{wheel.name}: good, {wheel.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
