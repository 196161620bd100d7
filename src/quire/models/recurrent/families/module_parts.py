"""Typed access to the attributes of transformers' modules."""

from torch import Tensor, nn

from quire.models.config import UnsupportedModel

SILU = frozenset({"silu", "swish"})


def count(part: nn.Module, name: str) -> int:
    """Return an attribute of the module that is an integer. Raises UnsupportedModel."""
    value: object = getattr(part, name, None)
    if not isinstance(value, int):
        raise refusal(part, f"the {name} of their {type(part).__name__} is {value}, not an integer")
    return value


def conv_weights(part: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight [channels, kernel_size] and the bias of the module's convolution."""
    conv = part.get_submodule("conv1d")
    bias: object = getattr(conv, "bias", None)
    return conv.get_parameter("weight").squeeze(1), bias if isinstance(bias, Tensor) else None


def refuse_other_activation(part: nn.Module) -> None:
    """Raise UnsupportedModel unless the module's convolution goes through SiLU."""
    activation: object = getattr(part, "activation", None)
    if activation not in SILU:
        raise refusal(
            part,
            f"their {type(part).__name__} has a convolution with the activation {activation!r}, "
            "where 'silu' is supported",
        )


def refusal(part: nn.Module, why: str) -> UnsupportedModel:
    """Return the refusal of a model with the module. Its class is one of transformers', whose
    package has the name of the family."""
    return UnsupportedModel(type(part).__module__.split(".")[-2], why)
