"""How far the logits of a whole model may be off by rounding alone.

A number goes, layer after layer, through sums over the hidden size (twice before attention counts
its keys, twice after), over the keys, and over the width of the MLP; the head is one more. Norms
scale errors with what they are errors of, and residual sums carry them on: all that is one chain of
so many roundings, relative to the largest logit, as errors are to the numbers they are errors of.
"""

from pathlib import Path

from torch import Tensor
from transformers import AutoConfig

from tests.models.rounding import Exact, assert_within, summed


def logits_error(folder: Path, num_tokens: int) -> float:
    """Of float32 logits that come after so many tokens, in parts of the largest."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    hidden: int = config.hidden_size
    widths: int | list[int] = getattr(config, "intermediate_size", None) or 4 * hidden
    mlp = max(widths) if isinstance(widths, list) else widths
    return summed(config.num_hidden_layers * (4 * hidden + num_tokens + mlp) + hidden)


def assert_same_logits(one: Tensor, other: Tensor, folder: Path, num_tokens: int) -> None:
    """Either is off by its own roundings."""
    largest = other.double().abs().max()
    assert_within(one, Exact(other.double(), 2 * logits_error(folder, num_tokens) * largest))
