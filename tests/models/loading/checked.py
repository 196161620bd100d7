"""Runs the checks at load on one module, with or without a fault."""

from functools import partial
from pathlib import Path

import pytest
import torch

from quire.models.loading import pretrained
from quire.models.loading.checks.measure import measure, own_logits
from quire.models.loading.checks.noise import NOISES_APART, rounding_noise
from quire.models.loading.checks.packing import distance
from tests.models.loading.faults import IN_CALLS, IN_MODULES

CPU = torch.device("cpu")


def worst_of_bound(
    folder: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, fault: str | None = None
) -> float:
    """Return how far the logits of the checks are apart, in parts of what rounding explains."""
    config = pretrained.read_config(folder, trust_remote_code=False)
    module = pretrained.load_module(
        folder, config, dtype=dtype, trust_remote_code=False, on_tensor=lambda done, total: None
    )
    text = config.get_text_config()
    if fault is not None and fault in IN_MODULES:
        IN_MODULES[fault](monkeypatch, module)
    own = own_logits(module, text)
    noise = rounding_noise(module, partial(own_logits, module, text), own)
    if fault is not None and fault in IN_CALLS:
        IN_CALLS[fault](monkeypatch, module)
    measured = measure(module, text, own, CPU)
    apart = max(
        distance(measured.redirected, measured.own), distance(measured.packed, measured.redirected)
    )
    return apart / (NOISES_APART * noise)
