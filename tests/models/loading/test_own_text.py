"""The loss of quantised weights is told in a text of Quire's own."""

import json
import logging
import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
from tests.models.loading.test_quantised import load_int8

FOLDER = Path(str(files("quire.models") / "bundled"))
TOLD = re.compile(r"perplexity of a text of (\d+) tokens from ([\d.]+) to ([\d.]+) \(")


def test_the_loss_is_told_in_perplexity(
    w8a8_kernel: W8A8Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire.models.loading.checks.quantised")
    load_int8(FOLDER, w8a8_kernel)
    told = TOLD.search(caplog.text)
    assert told is not None
    count, before, after = map(float, told.groups())
    assert count > 50
    assert after != before
    assert after == pytest.approx(before, rel=0.1)


def test_a_model_of_few_positions_reads_the_beginning(
    w8a8_kernel: W8A8Kernel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire.models.loading.checks.quantised")
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["max_position_embeddings"] = 24
    (tmp_path / "config.json").write_text(json.dumps(config))
    load_int8(tmp_path, w8a8_kernel)
    told = TOLD.search(caplog.text)
    assert told is not None and told[1] == "23"


@pytest.mark.parametrize("content", [None, "{}"], ids=["missing", "unreadable"])
def test_a_model_without_a_tokenizer_is_loaded(
    content: str | None, w8a8_kernel: W8A8Kernel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire.models.loading.checks.quantised")
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").unlink()
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    load_int8(tmp_path, w8a8_kernel)
    assert "quantised" in caplog.text and not TOLD.search(caplog.text)
