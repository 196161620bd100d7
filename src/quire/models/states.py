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

    Families differ in which inner module their head's input comes from, and in what they call it. A
    module without any that is known shows none.
    """
    get_decoder = getattr(module, "get_decoder", None)
    named = [getattr(module, name, None) for name in ("base_model", "model")]
    inner = [*named, get_decoder() if callable(get_decoder) else None]
    for each in {id(each): each for each in inner if isinstance(each, nn.Module)}.values():
        each.register_forward_hook(StatesHook(context))
