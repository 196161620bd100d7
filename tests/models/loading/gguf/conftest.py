"""Folders that stand for GGUF files are made where a test may write."""

from pathlib import Path

import pytest
from huggingface_hub import constants


@pytest.fixture(autouse=True)
def hf_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of Hugging Face."""
    home = tmp_path / "hf"
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    return home
