"""Builds the Dockerfile and runs the image: `python -m tools.image [FOLDER] [--torch-index URL]`.

Buildah builds it on a Debian of debootstrap's; the image then runs as containers do where nothing
is allowed: any user of group 0, a root that is read-only, `/cache` alone to write to, no network
but its own loopback. Where root, a program or the packages cannot be had it says so and exits 0.

All of it runs in namespaces of its own, so that no mount and no process outlives it.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.image.base import Unreachable, fetch_torch, make_base
from tools.image.build import Buildah
from tools.image.checks import check_health_check, check_running

PROGRAMS = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "tar": "tar",
}
"""Programs that are needed, and the Debian packages that have them."""
WITHIN_S = 1800
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
INSIDE = "--inside-namespaces"


def lacking() -> str | None:
    """The reason why this machine cannot do it, or None."""
    if os.geteuid() != 0:
        return "it needs root, for chroot and mounts"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is not installed: Debian's package {package} has it"
    if subprocess.run([*APART, "true"], capture_output=True).returncode != 0:
        return "this machine grants no namespaces"
    return None


def check(folder: Path, torch_index: str) -> None:
    """Raises Unreachable where packages are out of reach, AssertionError for what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    base = make_base(folder)
    wheels = fetch_torch(folder, torch_index)
    storage = storage_in(folder)
    storage.mkdir()
    buildah = Buildah(storage)
    buildah.import_base(base)
    buildah.build(wheels)
    check_health_check(buildah)
    check_running(buildah, storage / "cache")


def storage_in(folder: Path) -> Path:
    """The folder of all that is not kept for the next time."""
    return folder / "storage"


def run_apart(arguments: Sequence[str], folder: Path) -> int:
    """The same command in namespaces of its own; nothing is left of them and what they stored."""
    shutil.rmtree(storage_in(folder), ignore_errors=True)
    again = [*APART, sys.executable, "-m", "tools.image", INSIDE, *arguments]
    with subprocess.Popen(again) as process:
        try:
            return process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            print(f"image-check: not done within {WITHIN_S} s", file=sys.stderr)
            return 1
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(storage_in(folder), ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Return 0 where the image is good or cannot be checked here, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".image"))
    parser.add_argument("--torch-index", default="", help="another index that has torch for CPUs")
    parser.add_argument(INSIDE, action="store_true", dest="inside", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    reason = None if options.inside else lacking()
    if reason is not None:
        print(f"image-check skipped: {reason}")
        return 0
    if not options.inside:
        return run_apart(arguments, options.folder)
    try:
        check(options.folder.resolve(), options.torch_index)
    except Unreachable as error:
        print(f"image-check skipped: {error}")
        return 0
    print("image-check: the image is good")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
