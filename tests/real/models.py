"""Lends folders of real weights and real tokenizers, or skips the test and says why."""

import os
from pathlib import Path

import pytest

VARIABLE = "QUIRE_REAL_MODELS"


def real_folder(name: str) -> Path:
    """Return the folder of a model or tokenizer under the one that QUIRE_REAL_MODELS names; skip
    where it is not there."""
    folder = Path(os.environ.get(VARIABLE, "/nonexistent")) / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"{VARIABLE} has no {name}")
    return folder
