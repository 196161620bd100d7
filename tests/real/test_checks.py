"""Checks at load on real weights: they refuse none, keep every fast path, and see every fault."""

import logging
from itertools import product
from pathlib import Path

import pytest
import torch

from quire.models.config import ModelDtype, Quantization
from quire.models.layers.decoder import DecoderForward
from quire.models.layers.fused_layers import AttentionForward, GatedForward, NormForward
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.dtype_choice import cpu_has_fast_bfloat16
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from quire.models.native import library
from tests.long import long_but_for
from tests.models.driver import ignore_progress
from tests.models.loading.checked import worst_of_bound
from tests.models.loading.faults import IN_CALLS, IN_MODULES
from tests.real.models import real_folder

CPU = torch.device("cpu")
MODELS = (pytest.param("smollm2"), pytest.param("gemma3", marks=pytest.mark.long))
DTYPES = (torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long), torch.float32)
FAULTS = (*IN_MODULES, *IN_CALLS)
WEIGHTS = tuple(product((ModelDtype.BFLOAT16, ModelDtype.FLOAT32), Quantization))
"""Dtypes and formats of weights."""
IN_EVERY_RUN = tuple(product((ModelDtype.BFLOAT16, ModelDtype.FLOAT32), (Quantization.NONE,)))


@pytest.fixture(params=MODELS)
def folder(request: pytest.FixtureRequest) -> Path:
    name: str = request.param
    return real_folder(name)


def loaded(folder: Path, dtype: ModelDtype, quantization: Quantization) -> LoadedModel:
    """Return the model with the kernels that a start with these options gives it."""
    kernels = choose_kernels(KernelOptions(quantization, dtype=dtype), CPU)
    return load_model(
        ModelSource(str(folder)),
        dtype=dtype,
        device=CPU,
        on_progress=ignore_progress,
        kernels=kernels,
    )


@long_but_for(IN_EVERY_RUN, "dtype, quantization", WEIGHTS)
def test_real_models_start_with_all_of_their_kernels(
    folder: Path,
    dtype: ModelDtype,
    quantization: Quantization,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if library() is None:
        pytest.skip("the C++ kernels were not built")
    if dtype is ModelDtype.BFLOAT16 and not cpu_has_fast_bfloat16():
        pytest.skip("this CPU computes in float32: its kernels know no bfloat16")
    caplog.set_level(logging.WARNING, "quire")
    model = loaded(folder, dtype, quantization)
    assert model.left_out == () and not caplog.records
    forwards = [type(vars(part).get("forward")) for part in model.module.modules()]
    num_layers = model.facts.num_layers
    assert forwards.count(AttentionForward) == forwards.count(GatedForward) == num_layers
    assert forwards.count(NormForward) >= 2 * num_layers + 1
    assert DecoderForward in forwards


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show_beside_the_noise_of_real_weights(
    folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worst_of_bound(folder, torch.bfloat16, monkeypatch, fault) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_is_no_fault_of_real_weights(
    folder: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worst_of_bound(folder, dtype, monkeypatch) <= 1
