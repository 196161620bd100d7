"""A build takes two things from elsewhere: a Debian for the base image, and torch's wheel."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parent.parent.parent
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = ("ca-certificates", "python3-venv")
PROBE_S = 120
FETCH_S = 600


class Unreachable(Exception):
    """Packages cannot be had here: nothing that the image could help."""


def said(text: str) -> str:
    """The last line that a program said."""
    return (text.strip().splitlines() or ["nothing"])[-1]


def base_of_dockerfile() -> tuple[str, str]:
    """The version of Python and the suite of Debian in the name of the base image."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(r"^ARG PYTHON_IMAGE=python:([\d.]+)-slim-(\w+)$", text, re.MULTILINE)
    assert found is not None, "the Dockerfile names no base image such as python:3.11-slim-bookworm"
    return found[1], found[2]


def make_base(folder: Path) -> Path:
    """An archive of a small Debian with Python, the command `python`, and this machine's
    certificates; it is kept for the next time."""
    version, suite = base_of_dockerfile()
    archive = folder / f"{suite}.tar"
    if archive.exists():
        return archive
    with tempfile.TemporaryDirectory(dir=folder) as place:
        root = Path(place) / "root"
        bootstrap(suite, root)
        assert (root / f"usr/bin/python{version}").exists(), f"{suite} has no Python {version}"
        (root / "usr/bin/python").symlink_to("python3")
        (root / CERTIFICATES.relative_to("/")).write_bytes(CERTIFICATES.read_bytes())
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")
        whole = Path(place) / "whole.tar"
        subprocess.run(["tar", "-C", root, "-c", "-f", whole, "."], check=True, timeout=FETCH_S)
        whole.rename(archive)
    return archive


def bootstrap(suite: str, root: Path) -> None:
    """Raises Unreachable where the lists of packages cannot be had, CalledProcessError else."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    with tempfile.TemporaryDirectory() as place:
        probe = [*command, "--print-debs", suite, f"{place}/root"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_S)
    if done.returncode != 0:
        raise Unreachable(f"Debian's packages are out of reach: {said(done.stdout + done.stderr)}")
    print(f"debootstrap makes {suite}", flush=True)
    subprocess.run([*command, suite, root], check=True, stdout=subprocess.DEVNULL, timeout=FETCH_S)


def fetch_torch(folder: Path, torch_index: str) -> Path:
    """The folder that `TORCH_INDEX` shall name: an index with torch of constraints.txt alone."""
    version, _ = base_of_dockerfile()
    index = folder / "index"
    place = index / "cpu" / "torch"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    where = ["--dest", str(place), "--constraint", str(ROOT / "constraints.txt")]
    only = ["--only-binary=:all:", f"--python-version={version}"]
    more = ["--extra-index-url", torch_index] if torch_index else []
    command = [*pip, *where, *only, *more, "torch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S)
    if done.returncode != 0:
        raise Unreachable(f"the wheel of torch is out of reach: {said(done.stderr)}")
    wheels = sorted(place.glob("*.whl"))
    links = [f'<a href="{quote(wheel.name)}">{wheel.name}</a>' for wheel in wheels]
    (place / "index.html").write_text("\n".join(links))
    return index
