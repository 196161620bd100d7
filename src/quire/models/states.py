"""The states that a model's head reads: kept from a forward where a step needs some of them."""

from dataclasses import dataclass

from torch import Tensor, nn

from quire.models.attention.hook import AttentionContext


@dataclass(frozen=True, slots=True)
class StatesHook:
    """Keeps the states that a step needs in the context, from the output of the module without
    its head."""

    context: AttentionContext

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        indices = self.context.states_indices
        states = getattr(output, "last_hidden_state", None)
        if indices is not None and isinstance(states, Tensor):
            self.context.states = states[0].index_select(0, indices)


def show_states(module: nn.Module, context: AttentionContext) -> None:
    """Let forwards of a transformers module show the states that its head reads.

    A module whose inner module is not found as transformers names it shows none.
    """
    inner = getattr(module, "base_model", None)
    if isinstance(inner, nn.Module):
        inner.register_forward_hook(StatesHook(context))
