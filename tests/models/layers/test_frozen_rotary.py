"""Rotary modules that ask the device or the host are replaced by what gives the same bits."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

from quire.models.graphs.crossings import HostTransferDetector
from quire.models.layers.frozen_rotary import FrozenRotary, freeze_rotary
from tests.models.families import LONG_ROPE, PLAIN_ROPE, Fields

CPU, META = torch.device("cpu"), torch.device("meta")
LENGTH = 128
SIZES: Fields = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
}
BY_KIND = {
    "full_attention": LONG_ROPE["rope_parameters"],
    "sliding_attention": PLAIN_ROPE["rope_parameters"],
}


class Rotary(NamedTuple):
    """A rotary module of transformers, and the kinds of layer that it is called with."""

    module: nn.Module
    kinds: tuple[str, ...] = ()

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> list[Tensor]:
        x = torch.empty(1, 1, 1, dtype=dtype, device=positions.device)
        calls: list[tuple[str, ...]] = [(kind,) for kind in self.kinds] or [()]
        return [each for more in calls for each in self.module(x, positions, *more)]


MODULES: dict[str, type[nn.Module]] = {
    "llama": LlamaRotaryEmbedding,
    "phi3": Phi3RotaryEmbedding,
    "phimoe": PhimoeRotaryEmbedding,
    "gemma3_text": Gemma3RotaryEmbedding,
}
FIELDS: dict[str, Fields] = {
    "llama": PLAIN_ROPE,
    "phi3, long rope": LONG_ROPE,
    "phimoe, long rope": LONG_ROPE,
    "phimoe": PLAIN_ROPE,
    "gemma3_text, long rope by kind": {"head_dim": 8, "rope_parameters": BY_KIND},
}
ASKING = tuple(name for name in FIELDS if name != "llama")


def rotary(name: str) -> Rotary:
    family, fields = name.split(",")[0], FIELDS[name]
    config = AutoConfig.for_model(family, **SIZES, **fields)
    kinds = tuple(BY_KIND) if fields["rope_parameters"] is BY_KIND else ()
    return Rotary(MODULES[family](config), kinds)


@pytest.mark.parametrize("name", ASKING)
@given(
    positions=st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=8),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_what_is_frozen_says_the_same(name: str, positions: list[int], dtype: torch.dtype) -> None:
    plain, frozen = rotary(name), rotary(name)
    freeze_rotary(frozen.module, LENGTH, CPU)
    assert isinstance(frozen.module.forward, FrozenRotary)
    at = torch.tensor([positions])
    for found, expected in zip(frozen(at, dtype), plain(at, dtype), strict=True):
        assert found.dtype is dtype and torch.equal(found, expected)


@pytest.mark.parametrize("name", ASKING)
def test_what_is_frozen_asks_neither_device_nor_host(name: str) -> None:
    frozen = rotary(name)
    freeze_rotary(frozen.module, LENGTH, CPU)
    frozen.module.to(META)
    with HostTransferDetector(META.type) as crossings:
        found = frozen(torch.zeros(1, 3, dtype=torch.int64, device=META), torch.bfloat16)
    assert all(each.is_meta for each in found) and crossings.places == []


def test_the_short_table_stays_where_others_would_pass_its_length() -> None:
    frozen = rotary("phi3, long rope")
    freeze_rotary(frozen.module, LENGTH, CPU)
    short = frozen(torch.tensor([[5]]), torch.float32)
    together = frozen(torch.tensor([[5, 400]]), torch.float32)
    for alone, beside in zip(short, together, strict=True):
        assert torch.equal(alone[:, :1], beside[:, :1])


def test_what_asks_nothing_is_left_as_it_is() -> None:
    plain = rotary("llama")
    freeze_rotary(plain.module, LENGTH, CPU)
    assert "forward" not in vars(plain.module)


class Turning(Phi3RotaryEmbedding):
    """Turns the other way."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = super().forward(x, position_ids)
        return cos, -sin


class Counting(Phi3RotaryEmbedding):
    """Takes a token's place in the row for its position."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = super().forward(x, torch.arange(position_ids.shape[1])[None])
        return cos, sin


@pytest.mark.parametrize("changed", [Turning, Counting])
def test_what_says_otherwise_is_left_as_it_is(changed: type[nn.Module]) -> None:
    module = changed(AutoConfig.for_model("phi3", **SIZES, **LONG_ROPE))
    freeze_rotary(module, LENGTH, CPU)
    assert "forward" not in vars(module)
