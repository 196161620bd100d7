"""What the cache asks to be done with the contents of blocks, in this order, before a step runs."""

from enum import StrEnum
from typing import NamedTuple


class MoveKind(StrEnum):
    """Between the device's blocks and the host's, which are numbered apart."""

    OUT = "out"
    IN = "in"
    COPY = "copy"
    """From one block of the device to another."""


class Move(NamedTuple):
    """One block, in all layers of its group."""

    kind: MoveKind
    source: int
    target: int
