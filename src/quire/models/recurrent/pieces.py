"""The pieces of a step's rows over which recurrent layers carry their states.

rows       0 ............ 48 .... 60 ............ 61       two sequences, three pieces: the
pieces     [0, 48)        [48, 60)  [60, 61)               state after 48 tokens is kept apart,
reads      0              3         7                      so the first sequence has two
writes     3              5         7
sequences  0                        2               3
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pieces:
    """The P pieces of a step of T tokens in S sequences, on the model's device, all int32.

    starts: [P + 1], offsets into the T tokens.
    reads: [P], the id of the state that a piece begins with; the null state is all zeros.
    writes: [P], the id of the state that a piece leaves, never the null state. It may be what the
        piece reads. No other sequence of the step reads or writes it.
    sequences: [S + 1], offsets into the pieces. A piece that is not the first of its sequence reads
        what the one before it writes.
    """

    starts: Tensor
    reads: Tensor
    writes: Tensor
    sequences: Tensor
