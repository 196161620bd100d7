"""The blocks of a model, and the states of its recurrent layers, as rows of bytes in the host's
memory: the form in which they leave the engine's memory and come back.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from quire.models.kv.streams import Mark


class BlockRows(Protocol):
    """Copies blocks to rows and back, one block of all layers of a group in each; or states, one of
    all recurrent layers. Rows are uint8 [rows, row_bytes] on the host."""

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
    """A model whose blocks and states can be had as rows."""

    def block_rows(self) -> BlockRows | None:
        """Return the copier of the blocks; None for a model without attention. On a device that is
        not the host it takes memory of it, of `staging_bytes`."""
        ...

    def state_rows(self) -> BlockRows | None:
        """Return the copier of the states; None for a model without recurrent layers."""
        ...

    @property
    def state_form(self) -> str:
        """The kernels of states, and the dtype and shapes of their parts by layer: rows of equal
        form have the same bytes at the same places. Empty without recurrent layers."""
        ...
