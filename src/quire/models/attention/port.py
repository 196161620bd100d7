"""What stands between a transformers attention module and the attention that runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from quire.models.attention.backend import AttentionStep


class Port(Protocol):
    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        """[1, heads, tokens, width] each, as transformers has them, to [1, tokens, heads, width].
        `extras`: what else the module gave its attention function, by name."""
        ...


@dataclass(slots=True)
class CurrentStep:
    """The step that a module is running now, its tokens' positions [T], and whether of each row of
    logits only the largest are wanted; all ports look here."""

    attention: AttentionStep | None = None
    positions: Tensor | None = None
    only_largest: bool = False
