"""The blocks of a model as rows of bytes in the host's memory: the form in which they leave the
engine's memory and come back.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from quire.models.kv.streams import Mark


class BlockRows(Protocol):
    """Copies blocks to rows and back, one block of all layers of a group in each. Rows are uint8
    [rows, row_bytes] on the host."""

    @property
    def row_bytes(self) -> int: ...

    @property
    def max_rows(self) -> int:
        """The most rows of one call, which takes few milliseconds of a step."""
        ...

    def new_rows(self, num_rows: int) -> Tensor:
        """Return rows in memory from and to which the device copies fastest."""
        ...

    def read(self, blocks: Sequence[int], rows: Tensor) -> Mark:
        """Copy blocks, as all work so far leaves them, to the first rows; these have them where the
        mark is reached."""
        ...

    def write(self, rows: Tensor, blocks: Sequence[int]) -> None:
        """Copy rows to as many blocks, after all work so far and before what follows."""
        ...


@runtime_checkable
class BlockRowsModel(Protocol):
    """A model whose blocks can be had as rows."""

    def block_rows(self) -> BlockRows:
        """Return the copier of the blocks. On a device that is not the host it takes memory of it,
        of `staging_bytes`."""
        ...
