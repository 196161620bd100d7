"""Lends folders of real weights and real tokenizers, or skips the test and says why."""

import os
from pathlib import Path

import pytest

VARIABLE = "QUIRE_REAL_MODELS"


def real_folder(name: str) -> Path:
    """Return the folder of a model or tokenizer; skip where it cannot be had."""
    given = os.environ.get(VARIABLE)
    if not given or not (Path(given) / name / "tokenizer.json").is_file():
        pytest.skip(f"{name} cannot be had: {VARIABLE} names no folder that has it")
    return Path(given) / name
