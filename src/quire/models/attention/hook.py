"""The interface between a transformers attention module and the attention backend that runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from quire.models.attention.backend import AttentionStep
from quire.models.recurrent.hook import RecurrentContext


class AttentionHook(Protocol):
    """A function that an attention module calls in the place of transformers' attention
    function."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        """Attend with `query` [1, heads, tokens, head_size], and return [1, tokens, heads, size].

        `key` and `value` are [1, kv heads, tokens, size], as transformers has them. `extras` are
        the other arguments that the module gave its attention function, by name.
        """
        ...


@dataclass(slots=True)
class AttentionContext:
    """The step that a module is running now; all hooks of the module share one context.

    attention: the backend's step, or None outside of a forward.
    positions: [T] int64, the positions of the step's tokens.
    states_indices: the tokens whose states are needed (`Batch.states_indices`).
    states: these states [S, hidden_size], once they are computed.
    recurrent: what the recurrent modules carry from token to token, if there are such.
    """

    attention: AttentionStep | None = None
    positions: Tensor | None = None
    states_indices: Tensor | None = None
    states: Tensor | None = None
    recurrent: RecurrentContext = field(default_factory=RecurrentContext)
