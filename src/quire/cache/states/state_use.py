"""The states that a chunk of a request reads and writes, for a model with recurrent layers.

A state holds what all recurrent layers keep of a sequence up to one position. States have ids out
of a pool of their own:

    tokens      0 ........ 48 ...... 60      a chunk of 60 tokens that begins a request: it reads
    states         -> 3         -> 5         the null state, leaves the state after 48 tokens in 3,
                                             and goes on from there to 5
"""

from typing import NamedTuple

NULL_STATE = 0
"""The state before the first token, all zeros. It is never written."""


class StateWrite(NamedTuple):
    """The state after the first `end` tokens of a request, and where it is written."""

    end: int
    state_id: int


class StateUse(NamedTuple):
    """A chunk begins with the state `read`, and leaves the `writes`, of which the last is the state
    at its end. It may write where it reads."""

    read: int
    writes: tuple[StateWrite, ...]
