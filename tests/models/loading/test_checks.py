"""Checks at load see faults of code and of calls, and never take rounding for one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from quire.models.config import FailedCheck
from quire.models.hf import PagedAttentionHook
from quire.models.loading import pretrained
from quire.models.loading.checks.noise import rounding_noise
from quire.models.loading.checks.packing import NUM_TOKENS, check_tokens, distance
from quire.models.loading.checks.shrunken import build_random, small_copies
from quire.models.loading.checks.structure import check_structure
from quire.models.rounding import RESULT_ROUNDING
from tests.long import long_but_for
from tests.models.checkpoints import tiny_config
from tests.models.families import SERVED
from tests.models.loading.checked import worst_of_bound
from tests.models.loading.faults import IN_CALLS, IN_MODULES
from tests.models.reference import References
from tests.models.representatives import FAMILIES

FAULTS = (*IN_MODULES, *IN_CALLS)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PLAIN = ("llama", "gemma2", "qwen3")
WITHOUT_COPY = frozenset(
    f"{name}, text alone"
    for name in ("gemma4", "glm46v", "glm4v", "glm4v_moe")
    + ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe")
)
"""Families of which no small copy runs: their weights alone are checked."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", PLAIN)
def test_faults_are_seen_beside_rounding(
    name: str,
    fault: str,
    dtype: torch.dtype,
    references: References,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = references.checkpoint(name)
    assert worst_of_bound(folder, dtype, monkeypatch) <= 1
    assert worst_of_bound(folder, dtype, monkeypatch, fault) > 1


def check(name: str) -> None:
    """Check the code of a family with its tiny configuration, as a load does."""
    config = tiny_config(SERVED[name])
    check_structure(config, pretrained.build_without_weights(Path("of-a-test"), config))


@long_but_for(FAMILIES.keys() & SERVED.keys(), "name", SERVED)
def test_a_small_copy_of_each_served_family_passes(name: str) -> None:
    config = tiny_config(SERVED[name])
    skeleton = pretrained.build_without_weights(Path("of-a-test"), config)
    assert check_structure(config, skeleton) == (name not in WITHOUT_COPY)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_small_copy_shows_each_fault_before_weights_are_read(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_in_copies(fault, monkeypatch)
    with pytest.raises(FailedCheck, match="is not served, because a check found .* try another"):
        check("llama")


def plant_in_copies(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault in every small copy that is built from now on."""

    def faulty(config: PretrainedConfig, seed: int) -> PreTrainedModel:
        module = build_random(config, seed)
        {**IN_MODULES, **IN_CALLS}[fault](monkeypatch, module)
        return module

    monkeypatch.setattr("quire.models.loading.checks.structure.build_random", faulty)


def test_a_small_copy_shows_a_scale_that_is_off_by_a_thousandth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ordinary = PagedAttentionHook.attend

    def off(
        self: PagedAttentionHook,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        extras: Mapping[str, object],
    ) -> Tensor:
        layer = replace(self.layer, scale=self.layer.scale * 1.001)
        return ordinary(replace(self, layer=layer), query, key, value, extras)

    monkeypatch.setattr(PagedAttentionHook, "attend", off)
    with pytest.raises(FailedCheck, match="change each other"):
        check("llama")


def test_a_small_copy_has_every_kind_of_layer() -> None:
    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=26)
    skeleton = pretrained.build_without_weights(Path("of-a-test"), config)
    small = next(small_copies(config, skeleton))
    assert set(small.layer_types) == set(config.layer_types) and small.num_hidden_layers == 6
    assert small.sliding_window < NUM_TOKENS


@given(
    rows=st.integers(1, 4),
    shift=st.floats(-1e3, 1e3),
    seed=st.integers(0, 2**32 - 1),
)
def test_distance_does_not_see_what_all_logits_of_a_row_share(
    rows: int, shift: float, seed: int
) -> None:
    logits = torch.randn(rows, 64, generator=torch.Generator().manual_seed(seed))
    shifted = logits.double() + shift
    assert distance(shifted, logits) <= 1e-9
    other = torch.randn(rows, 64, generator=torch.Generator().manual_seed(seed + 1))
    assert 0.5 < distance(other, logits) < 4


@pytest.mark.parametrize("vocab_size", [13, 101, 49152, 262144])
def test_tokens_of_checks_are_of_the_vocabulary_and_differ(vocab_size: int) -> None:
    tokens = check_tokens(vocab_size)
    assert len(set(tokens)) == NUM_TOKENS
    assert min(tokens) > 0 and max(tokens) < vocab_size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_noise_is_that_of_a_sum_of_rounded_results(dtype: torch.dtype) -> None:
    """Each of n results is off by a number that is even within its rounding u, and the sum of n
    equal ones by u sqrt(n / 3) / n of its size."""
    parts = nn.Sequential(*(nn.Identity() for _ in range(4)))
    x = torch.randn(8, 512, generator=torch.Generator().manual_seed(1)).to(dtype)

    def total() -> Tensor:
        return torch.stack([part(x).double() for part in parts]).sum(0)

    expected = RESULT_ROUNDING[dtype] * (4 / 3) ** 0.5 / 4
    assert expected / 1.5 <= rounding_noise(parts, total, total()) <= 1.5 * expected
