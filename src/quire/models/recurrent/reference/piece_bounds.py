"""The pieces of a step as plain numbers, in the order in which a reference goes through them."""

from typing import NamedTuple

from quire.models.recurrent.pieces import Pieces


class PieceBounds(NamedTuple):
    """A piece of the rows from `first` up to `end`, and the states that it reads and writes."""

    first: int
    end: int
    read: int
    write: int


def piece_bounds(pieces: Pieces) -> list[PieceBounds]:
    """Return the pieces in order; waits for the device."""
    starts, reads, writes = (each.tolist() for each in (pieces.starts, pieces.reads, pieces.writes))
    return [PieceBounds(*piece) for piece in zip(starts, starts[1:], reads, writes, strict=False)]
