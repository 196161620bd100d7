"""Does the wheel work where there is no checkout? `python -m tools.check_wheel WHEEL`

Its content is compared with `src`; then it is installed in a new environment outside the checkout,
which has what the wheel says that it needs and nothing else: links to what this interpreter has,
whose versions pip looks at. Every module is imported there, and `quire` is asked its version.
Modules of what a plain installation lacks may fail to import for its lack alone: Triton comes with
the PyTorch of GPUs, OpenTelemetry with the extra `otel`, Ray with the extra `ray`, the libraries of
`quire.workbench.terminal` with the extra `terminal`.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable, Iterator, Sequence
from email import message_from_bytes
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

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


def requirements_of(wheel: Path) -> list[str]:
    """Return the requirements that the wheel declares, those of extras too."""
    with ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []


def needed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the distributions by name that requirements without an extra lead to, from this
    interpreter.

    Raises PackageNotFoundError for one that is not installed.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(each, "") for each in requirements]
    while todo:
        text, of_extra = todo.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": of_extra}):
            continue
        found[requirement.name] = installed = distribution(requirement.name)
        for extra in {"", *requirement.extras} - {e for name, e in seen if name == installed.name}:
            seen.add((installed.name, extra))
            todo += [(each, extra) for each in installed.requires or []]
    return found


def link(needed_here: Sequence[Distribution], site: Path) -> None:
    """Link the files of distributions into `site`: whole folders, but for those that another
    distribution has files in too."""
    names = {each.name for each in needed_here}
    shared = {
        file.parts[0]
        for each in distributions()
        if each.name not in names
        for file in each.files or []
    }
    for each in needed_here:
        files = [file for file in each.files or [] if ".." not in file.parts]  # no commands
        for part in {Path(f if f.parts[0] in shared else f.parts[0]) for f in files}:
            real, linked = Path(str(each.locate_file(part))), site / part
            if real.exists() and not linked.exists():
                linked.parent.mkdir(parents=True, exist_ok=True)
                linked.symlink_to(real)


def install_and_import(wheel: Path) -> None:
    """Install and import in a new environment, from a folder that holds nothing else."""
    with tempfile.TemporaryDirectory(prefix="quire-wheel-") as folder:
        place = Path(folder)
        home = str(place / "venv")
        venv.create(home)
        python = place / "venv" / "bin" / "python"
        site = sysconfig.get_path("purelib", "venv", {"base": home, "platbase": home})
        link([*needed(requirements_of(wheel)).values()], Path(site))
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq"]
        plain = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([*pip, "--no-index", "--no-compile", str(wheel)], check=True, env=plain)
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
    install_and_import(wheel)
    print(f"{wheel.name}: good, {wheel.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
