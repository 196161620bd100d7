"""Models whose experts are grouped products say what they say by transformers' own."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu
from transformers import PreTrainedModel

from quire.models.experts.activations import Activation, recognise
from quire.models.experts.replacement import choose_experts, has_experts, replace_experts
from tests.models.driver import load
from tests.models.logits_error import assert_same_logits
from tests.models.reference import References, ordinary, some_prompts

pytest.importorskip("triton", reason="triton is not installed")

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FAMILIES = ("qwen3_moe", "gpt_oss", "dbrx", "longcat_flash", "llama4_text", "jetmoe")
"""Gated, activated by the module between two products, gate and up apart, with experts that hand
their input on, scaled inputs, and tokens sorted by their router."""
GATES: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: nn.SiLU(),
    Activation.GELU: gelu,
    Activation.GELU_TANH: partial(gelu, approximate="tanh"),
    Activation.NONE: relu,
}


def logits(model: PreTrainedModel, prompt: list[int]) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_says_by_them_what_it_says_by_its_own(family: str, references: References) -> None:
    checkpoint = references.checkpoint(family)
    model = ordinary(checkpoint)
    prompts = some_prompts(4, 30)[2:]
    expected = [logits(model, prompt) for prompt in prompts]
    replaced = replace_experts(model)
    assert replaced.modules
    for prompt, own in zip(prompts, expected, strict=True):
        assert_same_logits(logits(model, prompt), own, checkpoint, len(prompt))
    replaced.undo()
    assert torch.equal(logits(model, prompts[0]), expected[0])


@torch.inference_mode()
def test_experts_that_hand_their_input_on_are_told_apart(references: References) -> None:
    """The experts from the fifth on hand their input on; the router chooses few of them."""
    checkpoint = references.checkpoint("longcat_flash")
    model = ordinary(checkpoint)
    experts = next(part for part in model.modules() if type(part).__name__.endswith("FlashExperts"))
    states, ids = torch.randn(7, 48), torch.arange(14) % 7
    routing = ids.view(7, 2), torch.rand(7, 2)
    expected = experts(states, *routing)
    assert replace_experts(model).modules == [experts]
    assert_same_logits(experts(states, *routing), expected, checkpoint, num_tokens=7)


def test_what_computes_experts_is_told(references: References) -> None:
    assert load(references.checkpoint("llama")).experts == "none"
    model = load(references.checkpoint("qwen3_moe"))
    assert model.experts == "transformers"
    assert choose_experts(model.module, CPU, lambda: True) == "triton"
    assert any("forward" in vars(part) for part in model.module.modules())


@pytest.mark.parametrize(
    ("family", "device", "is_right", "why"),
    [
        ("qwen3_moe", GPU, True, "TRITON_INTERPRET is set, which runs it on a CPU"),
        ("qwen3_moe", CPU, False, "the logits differ"),
    ],
)
def test_where_they_cannot_run_the_model_keeps_its_own(
    family: str, device: torch.device, is_right: bool, why: str, references: References
) -> None:
    model = ordinary(references.checkpoint(family))
    assert has_experts(model)
    told = choose_experts(model, device, lambda: is_right)
    assert told == f"transformers (not triton: {why})"
    assert not any("forward" in vars(part) for part in model.modules())


def test_weights_of_another_dtype_are_left_alone(references: References) -> None:
    model = ordinary(references.checkpoint("qwen3_moe"), torch.float64)
    told = choose_experts(model, CPU, lambda: True)
    assert told == "transformers (not triton: it computes none of the modules)"


@pytest.mark.parametrize("activation", GATES, ids=lambda activation: activation.name)
def test_a_gate_is_known_by_what_it_says(activation: Activation) -> None:
    def gate(first: Tensor) -> Tensor:
        one, other = first.chunk(2, dim=-1)
        return GATES[activation](one) * other

    assert recognise(gate) is activation


def clamped(first: Tensor) -> Tensor:
    gate, up = first.chunk(2, dim=-1)
    return silu(gate.clamp(max=100)) * up


def the_other_way_round(first: Tensor) -> Tensor:
    up, gate = first.chunk(2, dim=-1)
    return silu(gate) * up


@pytest.mark.parametrize("gate", [clamped, the_other_way_round, silu, nn.PReLU(7)])
def test_what_says_something_else_is_not_taken_for_it(gate: Callable[[Tensor], Tensor]) -> None:
    assert recognise(gate) is Activation.NONE
