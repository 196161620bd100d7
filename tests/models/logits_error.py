"""How far the logits of a whole model may be off by rounding alone.

A number goes, layer after layer, through sums over the hidden size (twice before attention counts
its keys, twice after), over the keys, and over the width of the MLP; the head is one more. Norms
scale errors with what they are errors of, and residual sums carry them on: all that is one chain of
so many roundings, relative to the largest logit, as errors are to the numbers they are errors of.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from tests.models.rounding import Exact, assert_within, summed

NUM_RUNS = 4


def logits_error(folder: Path, num_tokens: int) -> float:
    """Of float32 logits that come after so many tokens, in parts of the largest."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    num_layers, hidden = config.num_hidden_layers, config.hidden_size
    return summed(num_layers * _layer_terms(folder, num_tokens) + hidden)


def _layer_terms(folder: Path, num_tokens: int) -> int:
    """The terms of the sums that a number goes through in a layer."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    hidden: int = config.hidden_size
    widths: int | list[int] = getattr(config, "intermediate_size", None) or 4 * hidden
    mlp = max(widths) if isinstance(widths, list) else widths
    return 4 * hidden + num_tokens + mlp


def logits_spread(
    model: nn.Module, logits: Callable[[], Tensor], folder: Path, num_tokens: int
) -> float:
    """How far logits go, in parts of the largest, where each result of a module is off by what the
    sums of a layer may be off. Where norms follow sums that cancel, as those over states may, that
    is further than `logits_error`: norms make small numbers large, with their errors."""
    size = summed(_layer_terms(folder, num_tokens))
    generator = torch.Generator().manual_seed(0)

    def change(module: nn.Module, args: object, result: object) -> object:
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        return result * (1 + size * (2 * torch.rand(result.shape, generator=generator) - 1))

    expected = logits()
    leaves = [part for part in model.modules() if next(part.children(), None) is None]
    handles = [part.register_forward_hook(change) for part in leaves]
    spreads = [float((logits() - expected).abs().max()) for _ in range(NUM_RUNS)]
    for handle in handles:
        handle.remove()
    return max(spreads) / max(1.0, float(expected.abs().max()))


def assert_same_logits(one: Tensor, other: Tensor, folder: Path, num_tokens: int) -> None:
    """Either is off by its own roundings."""
    largest = other.double().abs().max()
    assert_within(one, Exact(other.double(), 2 * logits_error(folder, num_tokens) * largest))
