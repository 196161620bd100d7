"""Lazy weights of float32 are float32 numbers to everyone, and models of them the same models."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from quire.models.loading import pretrained
from quire.models.loading.safetensors.opened_tensors import HALVES
from quire.models.weights.lazy_weight import HalfWeight, LazyWeight, widen_all, widened
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED

NAMES = ("llama", "qwen2", "gpt2", "gemma2", "deepseek_v3", "mixtral")
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
USES: list[Callable[[Tensor], Tensor]] = [
    lambda w: linear(X, w),
    lambda w: embedding(torch.tensor([4, 0, 4]), w),
    lambda w: torch.stack([w, w]).sum(0),
    lambda w: w[1:3],
    lambda w: w.view(2, -1).clone(),
    lambda w: w.to(torch.bfloat16),
    lambda w: w.double().T,
    lambda w: w.abs().amax(-1) + w[:, 0],
    lambda w: torch.einsum("ij,kj->ki", w, X),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("use", USES)
def test_whatever_is_computed_is_that_of_float32(
    use: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    kept = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    lazy = nn.Parameter(LazyWeight(HalfWeight(kept)), requires_grad=False)
    assert (lazy.dtype, lazy.shape) == (torch.float32, kept.shape)
    with torch.inference_mode():
        found, expected = use(lazy), use(kept.float())
    assert type(found) is Tensor and found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_a_parameter_of_it_and_a_module_that_moves_stay_lazy() -> None:
    layer = nn.Linear(8, 6, bias=False)
    kept = layer.weight.detach().to(torch.bfloat16)
    layer.weight = nn.Parameter(LazyWeight(HalfWeight(kept)), requires_grad=False)
    nn.Module.to(layer, torch.device("cpu"))
    assert isinstance(layer.weight, LazyWeight) and isinstance(layer.weight.stored, HalfWeight)
    assert layer.weight.stored.kept.data_ptr() == kept.data_ptr()
    nn.Module.to(layer, torch.device("meta"))
    assert isinstance(layer.weight, LazyWeight) and layer.weight.device.type == "meta"
    assert layer.weight.stored.kept.data_ptr() == kept.data_ptr()
    assert widened(layer.weight).device.type == "meta"
    nn.Module.to(layer, torch.device("cpu"))
    twin = nn.Linear(8, 6, bias=False)
    twin.weight = layer.weight
    both = nn.ModuleList([layer, twin])
    widen_all(both)
    assert type(layer.weight) is nn.Parameter and layer.weight is twin.weight
    assert torch.equal(layer.weight, kept.float())


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_lazy_weights_is_the_same_model(name: str, tmp_path: Path) -> None:
    folder = save_checkpoint(SERVED[name], tmp_path, torch.bfloat16)
    config = pretrained.read_config(folder, trust_remote_code=False)
    skeleton = pretrained.build_without_weights(folder, config)
    counted: list[tuple[int, int]] = []
    lazy = pretrained.load_lazy(
        folder,
        config,
        skeleton,
        torch.float32,
        lambda done, total: counted.append((done, total)),
    )
    plain = pretrained.load_module(
        folder,
        config,
        dtype=torch.float32,
        trust_remote_code=False,
        on_tensor=lambda done, total: None,
    )
    assert counted and counted[-1][0] == counted[-1][1]
    assert any(isinstance(each, LazyWeight) for each in lazy.parameters())
    assert pretrained.eos_token_ids(folder, lazy) == pretrained.eos_token_ids(folder, plain)
    widen_all(lazy)
    for mine, other in (
        (dict(lazy.named_parameters()), dict(plain.named_parameters())),
        (dict(lazy.named_buffers()), dict(plain.named_buffers())),
    ):
        assert mine.keys() == other.keys()
        for key, tensor in other.items():
            assert type(mine[key]) is type(tensor) and mine[key].dtype == tensor.dtype
            assert torch.equal(mine[key], tensor)
