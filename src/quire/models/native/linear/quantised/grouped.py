"""The functions of grouped.cpp: y = x W^T + bias in float32 over weights that are integers with
scales (`GroupedWeight`). They are packed once as they are, in four bits or in a byte each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from quire.models.native.library import Function, Library
from quire.models.native.packed_weight import PackedWeight, look_up, product
from quire.models.weights.group_form import GroupForm
from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.lazy_weight import StoredWeight, form_of
from quire.models.weights.weight_kernel import WeightOutline

PANEL_ROWS = 32
LINE_FLOATS = 16
STEP = 8
"""The granularity of groups, in columns."""
IN_GROUPS = 0
"""The number of bits by which the decoder knows weights that tell their form themselves."""
NUM_ROWS_FIELD = 4
"""The place of `num_rows` in a `PanelForm`."""
SHARD_NUMBERS = 1 << 22
"""The number of values packed at a time, which bounds the temporary memory."""


@dataclass(frozen=True, slots=True)
class GroupedKernel:
    """Runs on as many threads as torch does. x, bias and y are float32, on the CPU; raises
    ValueError for others, and where shapes do not fit.

    most_bits: the most bits of an integer that are packed; weights of more are left to others.
    """

    library: Library
    most_bits: int
    panel_bytes: Function
    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]

    @property
    def num_bits(self) -> int:
        """IN_GROUPS: each packed weight has its own."""
        return IN_GROUPS

    @property
    def panel_rows(self) -> int:
        """1: a joined weight has the rows of its parts alone."""
        return 1

    @property
    def is_exact(self) -> bool:
        return True

    def takes(self, weight: Tensor) -> bool:
        """Return False: plain numbers have no groups."""
        return False

    def takes_stored(self, stored: StoredWeight) -> bool:
        """Return whether it is a float32 matrix of integers with scales, for whole steps each."""
        if stored.dtype != torch.float32 or len(stored.shape) != 2 or 0 in stored.shape:
            return False
        return self._fits(form_of(stored))

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a float32 weight that is stored in groups."""
        if weight.dtype != torch.float32 or not self._fits(weight.form):
            return None
        assert weight.form is not None, "it fits"
        return self._num_bytes(weight.form, weight.num_rows, weight.num_columns)

    def pack(self, weight: Tensor) -> PackedWeight:
        """Raise ValueError: plain numbers have no groups."""
        raise ValueError("only weights that are stored in groups are packed, not plain numbers")

    def pack_stored(self, stored: StoredWeight) -> PackedWeight:
        """Pack a weight [N, K] that the kernel takes; `stored` stays as it is."""
        form = form_of(stored)
        assert form is not None, "it is taken"
        return self.pack_shards(form, stored.shape, _shards(stored))

    def pack_shards(
        self, form: GroupForm, shape: torch.Size, shards: Iterator[GroupedWeight]
    ) -> PackedWeight:
        """Pack a weight [N, K] of this form, given by shards of whole panels of rows.

        `packed` is [panels, lines, 1, LINE_FLOATS].
        """
        num_rows, num_columns = shape
        num_panels = -(-num_rows // PANEL_ROWS)
        num_lines = self._num_bytes(form, 1, num_columns) // (4 * LINE_FLOATS)
        packed = torch.empty(num_panels, num_lines, 1, LINE_FLOATS)
        struct = self._struct(form, num_rows)
        panel = 0
        for shard in shards:
            assert shard.form == form, "all rows are of one form"
            parts = (shard.numbers, shard.scales, shard.offsets)
            dense = [None if part is None else part.contiguous() for part in parts]
            self.pack_into(
                struct,
                *(None if part is None else part.data_ptr() for part in dense),
                len(shard.numbers),
                num_columns,
                packed[panel:].data_ptr(),
                torch.get_num_threads(),
            )
            panel += len(shard.numbers) // PANEL_ROWS
        return PackedWeight(packed, num_rows, num_columns)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight:
        """Join weights of equal K into one of all their rows, of which they become views.

        Those of equal forms are one weight if the rows of each but the last fill its panels; others
        are multiplied one after the other.
        """
        shapes = [weight.packed.shape for weight in weights]
        whole = torch.cat([weight.packed.view(-1, 1, 1, LINE_FLOATS) for weight in weights])
        start = num_rows = 0
        for weight, shape in zip(weights, shapes, strict=True):
            num_lines = shape[:2].numel()
            weight.packed.data = whole[start : start + num_lines].view(shape)
            start += num_lines
            num_rows += weight.num_rows
        _continue(weights)
        return PackedWeight(whole, num_rows, weights[0].num_columns)

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K], as `GroupedWeight.values` does."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]. `bias` [N] is contiguous.

        Each value of W is rounded at most twice if scales are not float16, once with offsets, and
        otherwise not at all.
        """
        return product(self.multiply, x, weight, bias)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W, as `GroupedWeight.values` does: [..., K]. Raises IndexError."""
        return look_up(self.copy_rows, indices, weight)

    def _fits(self, form: GroupForm | None) -> bool:
        return form is not None and form.num_bits <= self.most_bits and form.group_size % STEP == 0

    def _num_bytes(self, form: GroupForm, num_rows: int, num_columns: int) -> int:
        panel_bytes = self.panel_bytes(self._struct(form, num_rows), num_columns)
        return -(-num_rows // PANEL_ROWS) * panel_bytes

    def _struct(self, form: GroupForm, num_rows: int) -> object:
        return self.library.struct("PanelForm")(
            group_size=form.group_size,
            num_bits=4 if form.num_bits <= 4 else 8,
            scale_bytes=form.scale_bytes,
            has_offsets=form.has_offsets,
            num_rows=num_rows,
        )


FUNCTIONS = MappingProxyType(
    {
        "panel_bytes": "quire_grouped_panel_bytes",
        "pack_into": "quire_grouped_pack",
        "multiply": "quire_grouped",
        "copy_rows": "quire_grouped_rows",
    }
)


def bind_grouped(library: Library) -> GroupedKernel:
    """Return the kernel, for weights of any number of bits."""
    return library.bind(partial(GroupedKernel, library, most_bits=8), **FUNCTIONS)


def shard_starts(shape: torch.Size) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each shard of a weight [N, K]."""
    num_rows, num_columns = shape
    num_panels = max(SHARD_NUMBERS // (num_columns * PANEL_ROWS), 1)
    for first in range(0, num_rows, num_panels * PANEL_ROWS):
        yield first, min(num_panels * PANEL_ROWS, num_rows - first)


def _shards(stored: StoredWeight) -> Iterator[GroupedWeight]:
    for first, count in shard_starts(stored.shape):
        part = stored.narrow(0, first, count)
        grouped = None if part is None else part.grouped()
        assert grouped is not None, "whole rows of it are in groups too"
        yield grouped


def _continue(weights: Sequence[PackedWeight]) -> None:
    """Let the first panel of each weight count the rows from there on that are of its form and fill
    their panels."""
    before = None
    for weight in reversed(weights):
        panel = weight.packed.view(torch.int64)[0, 0, 0]
        panel[NUM_ROWS_FIELD] = weight.num_rows
        fills = weight.num_rows % PANEL_ROWS == 0
        if (
            before is not None
            and fills
            and torch.equal(panel[:NUM_ROWS_FIELD], before[:NUM_ROWS_FIELD])
        ):
            panel[NUM_ROWS_FIELD] += before[NUM_ROWS_FIELD]
        before = panel
