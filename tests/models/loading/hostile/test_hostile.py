"""Changed files are loaded or refused in one line, within bounds of time and memory, and lead to no
other file. `python -m tests.models.loading.hostile` puts many more."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from tests.models.loading.hostile.models import KINDS, Originals
from tests.models.loading.hostile.outcome import MAX_BYTES, opened_outside

MAX_SECONDS = 60
"""Seconds for a test whose cores other tests share."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Originals]:
    found = Originals(tmp_path_factory.mktemp("originals"))
    found.write()
    logging.disable(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HOME", str(found.folder / "hf"))
        yield found
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def outside() -> list[str]:
    return opened_outside()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32))
def test_a_changed_model_is_loaded_or_refused_in_one_line(
    kind: str, seed: int, originals: Originals, outside: list[str]
) -> None:
    name, outcome = originals.attack(kind, seed)
    fault = outcome.fault(max_seconds=MAX_SECONDS, max_bytes=MAX_BYTES)
    assert fault is None, f"{name}: {fault}"
    assert not outside


def test_a_fault_is_seen(originals: Originals, outside: list[str]) -> None:
    whole = Path(originals.folder / "outside.safetensors")
    whole.read_bytes()
    assert outside.pop() == str(whole)
