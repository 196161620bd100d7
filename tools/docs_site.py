"""Builds the site of the documentation: `python -m tools.docs_site`, which `make docs` calls."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / ".site" / "pages"
STAGED = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs"),
    *("deploy/README.md", "bench/README.md", "bench/RESULTS.md"),
)
"""The pages of the site, and what they show."""


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in STAGED:
        source, copy = ROOT / name, PAGES / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    # the theme's news of its successor is no fault of a page
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
