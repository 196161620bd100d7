"""The families of recurrent modules, by the names of transformers' classes. A new one is a file
with a `RecurrentFamily`, and a line here."""

from torch import nn

from quire.models.recurrent.families.delta_net import DeltaNet
from quire.models.recurrent.families.kimi import KimiFamily
from quire.models.recurrent.families.mamba import MambaFamily
from quire.models.recurrent.families.mamba2 import Mamba2Family
from quire.models.recurrent.families.short_conv import ShortConv
from quire.models.recurrent.family import RecurrentFamily

FAMILIES: tuple[RecurrentFamily, ...] = (
    DeltaNet(),
    KimiFamily(),
    Mamba2Family(),
    MambaFamily(),
    ShortConv(),
)


def family_of(part: nn.Module) -> RecurrentFamily | None:
    """Return the family of a recurrent module, or None for any other module."""
    name = type(part).__name__
    return next((family for family in FAMILIES if name in family.class_names), None)
