"""Modules by transformers' decorator, of all the layouts that it knows, say by grouped products
what they say by transformers' own products."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.integrations.moe import use_experts_implementation

from quire.models.experts.replacement import replace_experts
from tests.models.rounding import Exact, assert_within, summed

pytest.importorskip("triton", reason="triton is not installed")
NUM_EXPERTS, HIDDEN_SIZE, WIDTH, TOP_K, NUM_TOKENS = 5, 24, 12, 2, 7


class Experts(nn.Module):
    def __init__(self, config: PretrainedConfig, flags: dict[str, bool]) -> None:
        super().__init__()
        self.num_experts = NUM_EXPERTS
        name = "gate_up_proj" if flags["has_gate"] else "up_proj"
        shapes = {
            name: (2 * WIDTH if flags["has_gate"] else WIDTH, HIDDEN_SIZE),
            "down_proj": (HIDDEN_SIZE, WIDTH),
        }
        for each, (width, size) in shapes.items():
            shape = (size, width) if flags["is_transposed"] else (width, size)
            setattr(self, each, nn.Parameter(torch.randn(NUM_EXPERTS, *shape)))
            if flags["has_bias"]:
                setattr(self, f"{each}_bias", nn.Parameter(torch.randn(NUM_EXPERTS, width)))
        self.act_fn = nn.SiLU()
        self.post_expert_norm = nn.LayerNorm(HIDDEN_SIZE)

    def forward(self, states: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError("another implementation is named")


NAMES = ("has_gate", "is_transposed", "has_bias", "has_post_expert_norm")


@torch.inference_mode()
@pytest.mark.parametrize("chosen", [*product([False, True], repeat=len(NAMES))], ids=str)
def test_they_say_what_they_say_by_products_of_transformers(chosen: tuple[bool, ...]) -> None:
    """Either is off by a chain of roundings, relative to the largest number, as logits are."""
    flags = dict(zip(NAMES, chosen, strict=True))
    kind = use_experts_implementation(type("Experts", (Experts,), {}), **flags)  # type: ignore[arg-type]
    config = PretrainedConfig(experts_implementation="batched_mm")  # type: ignore[call-arg]
    experts = kind(config, flags)
    states, weights = torch.randn(NUM_TOKENS, HIDDEN_SIZE), torch.rand(NUM_TOKENS, TOP_K)
    ids = torch.randint(NUM_EXPERTS, (NUM_TOKENS, TOP_K))
    expected = experts(states, ids, weights)
    assert replace_experts(experts).modules == [experts]
    error = 2 * summed(HIDDEN_SIZE + WIDTH + HIDDEN_SIZE + TOP_K) * expected.abs().max()
    assert_within(experts(states, ids, weights), Exact(expected, error))
