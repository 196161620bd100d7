"""The files that commands write, as options name them: reports, and pictures by matplotlib, which
the extra `plot` installs. Nothing heavy is imported here: every command imports it."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from quire.extras import how_to_install

PLOT_SUFFIXES = (".png", ".svg")


def writable(text: str) -> Path:
    """Return the path of a file that can be written. Raises ArgumentTypeError."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"no file can be written at {text!r}")
    return path


def drawable(text: str) -> Path:
    """Return the path of a picture that can be written. Raises ArgumentTypeError."""
    path = writable(text)
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"expected a file that ends in {' or '.join(PLOT_SUFFIXES)}, got {text!r}"
        )
    return path


def check_plotting() -> None:
    """Raise ValueError where matplotlib is missing; called before anything long begins."""
    if find_spec("matplotlib") is None:
        raise ValueError(
            "--plot needs matplotlib, which is installed with the extra `plot`: "
            + how_to_install("plot")
        )
