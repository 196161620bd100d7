"""Linear layers on a GPU over weights of small integers with a scale for each group of columns,
which stay in their few bits, while x has more: W4A16 and W8A16."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from triton import cdiv

from quire.models.attention.triton.launch import DTYPES
from quire.models.attention.triton.support import is_interpreted
from quire.models.layers.group_form import GroupForm
from quire.models.layers.grouped_weight import GroupedWeight
from quire.models.layers.lazy_weight import StoredWeight, form_of
from quire.models.layers.triton.grouped_kernel import multiply, widen
from quire.models.layers.triton.launch import grouped_constants
from quire.models.layers.weight_kernel import WeightOutline
from quire.models.native.packed_weight import PackedWeight, join

RUN = 32
"""Columns whose numbers are the low or the high halves of bytes that follow each other."""
MIN_UNIT = 16
"""Columns of one group that follow each other: RUN or so many."""
ROW_BYTES = 16
"""Rows begin at multiples of so many bytes."""
HALF_BITS = 4
MANY_ROWS = 128
"""Rows of x from which on W is widened and multiplied by torch: then products take the time."""
WIDENED_COLUMNS = 1024
WIDENED_NUMBERS = 1 << 25
"""Numbers of W that are widened at once."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The places in the bytes of a row of W [N, num_columns]: of its numbers from 0 on, of its
    scales, and of its offsets, if it has any."""

    form: GroupForm
    num_columns: int

    @property
    def is_halved(self) -> bool:
        """Whether two numbers lie in a byte."""
        return self.form.num_bits <= HALF_BITS

    @property
    def num_bytes(self) -> int:
        """The bytes of the numbers: whole runs, where two lie in a byte."""
        return cdiv(self.num_columns, 2 * RUN) * RUN if self.is_halved else self.num_columns

    @property
    def scales_at(self) -> int:
        return cdiv(self.num_bytes, ROW_BYTES) * ROW_BYTES

    @property
    def offsets_at(self) -> int:
        return self.scales_at + self._num_scale_bytes

    @property
    def row_bytes(self) -> int:
        end = self.offsets_at + self._num_scale_bytes * self.form.has_offsets
        return cdiv(end, ROW_BYTES) * ROW_BYTES

    @property
    def _num_scale_bytes(self) -> int:
        return self.num_columns // self.form.group_size * self.form.scale_bytes

    @property
    def unit(self) -> int:
        """Columns that follow each other, within a run and a group."""
        return MIN_UNIT if self.form.group_size % RUN else RUN

    def constants(self) -> dict[str, object]:
        """Return the constants that both kernels take, which tell where a row has what."""
        is_signed = not self.form.has_offsets
        return {
            "SIZE": self.num_columns,
            "GROUP": self.form.group_size,
            "ZERO": 1 << HALF_BITS - 1 if self.is_halved and is_signed else 0,
            "IS_PACKED": self.is_halved,
            "NUMBER_STRIDE": self.row_bytes,
            "SCALE_STRIDE": self.row_bytes // self.form.scale_bytes,
            "HAS_OFFSETS": self.form.has_offsets,
            "RUN": RUN,
        }


@dataclass(frozen=True, slots=True)
class PackedGroups(PackedWeight):
    """A weight whose panels are single rows: `packed` is [N, 1, 1, as many numbers of W's dtype as
    the bytes of a row would be]."""

    form: GroupForm

    @property
    def layout(self) -> RowLayout:
        return RowLayout(self.form, self.num_columns)

    def parts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return views of its numbers, its scales and its offsets, each from where a first row has
        them."""
        layout, content = self.layout, self.packed.detach().view(torch.uint8).flatten()
        number = torch.uint8 if layout.is_halved else torch.int8
        scale = torch.float16 if self.form.scale_bytes == 2 else torch.float32
        return (
            content.view(number),
            content[layout.scales_at :].view(scale),
            content[layout.offsets_at :].view(scale) if self.form.has_offsets else None,
        )


@dataclass(frozen=True, slots=True)
class TritonGrouped:
    """Packs weights that are stored in groups, onto `device`, and multiplies by them. A number of W
    is rounded to the dtype that is computed in, as the same weight would be without groups."""

    device: torch.device

    @property
    def num_bits(self) -> int:
        """0: each packed weight tells."""
        return 0

    @property
    def is_exact(self) -> bool:
        return True

    def takes(self, weight: Tensor) -> bool:
        """Return False: plain numbers have no groups."""
        return False

    def takes_stored(self, stored: StoredWeight) -> bool:
        """Return whether it is a matrix of integers with scales, in a dtype that there are kernels
        for."""
        is_matrix = len(stored.shape) == 2 and 0 not in stored.shape
        form = form_of(stored) if is_matrix and stored.dtype in DTYPES else None
        return form is not None and _fits(form)

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a weight that is stored in groups."""
        if weight.form is None or not _fits(weight.form) or weight.dtype not in DTYPES:
            return None
        return weight.num_rows * RowLayout(weight.form, weight.num_columns).row_bytes

    def pack(self, weight: Tensor) -> PackedWeight:
        """Raise ValueError: plain numbers have no groups."""
        raise ValueError("only weights that are stored in groups are packed, not plain numbers")

    def pack_stored(self, stored: StoredWeight) -> PackedGroups:
        """Pack a weight [N, K] that is taken, on the CPU, and bring it to the device."""
        grouped = stored.grouped()
        assert grouped is not None, "it is taken"
        return self._packed(grouped, stored.dtype)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight | None:
        """Join weights of equal K and one form into one of all their rows, of which they become
        views. Returns None for others."""
        forms = {each.form for each in weights if isinstance(each, PackedGroups)}
        if len(forms) != 1:
            return None
        whole = join(weights)
        return PackedGroups(whole.packed, whole.num_rows, whole.num_columns, forms.pop())

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K], rounded to its dtype."""
        return self.rows(torch.arange(weight.num_rows, device=weight.packed.device), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]."""
        assert isinstance(weight, PackedGroups), "it was packed here"
        rows = x.reshape(-1, weight.num_columns).contiguous()
        out = rows.new_empty(len(rows), weight.num_rows)
        if len(rows) >= MANY_ROWS:
            self._multiply_widened(rows, weight, bias, out)
        elif len(rows) > 0:
            _multiply(rows, weight, bias, out)
        return out.view(*x.shape[:-1], weight.num_rows)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W: [..., K]. An index must be below N: a GPU does not tell in time."""
        assert isinstance(weight, PackedGroups), "it was packed here"
        out = weight.packed.new_empty(*indices.shape, weight.num_columns)
        if indices.numel():
            grid = (indices.numel(), cdiv(weight.num_columns, WIDENED_COLUMNS))
            constants = {**weight.layout.constants(), "COLUMNS": WIDENED_COLUMNS}
            widen[grid](indices.contiguous(), *weight.parts(), out, **constants)
        return out

    def _multiply_widened(
        self, rows: Tensor, weight: PackedGroups, bias: Tensor | None, out: Tensor
    ) -> None:
        """Multiply by so many widened rows of W at a time that they take little memory."""
        at_once = max(WIDENED_NUMBERS // weight.num_columns, 1)
        for first in range(0, weight.num_rows, at_once):
            last = min(first + at_once, weight.num_rows)
            wide = self.rows(torch.arange(first, last, device=rows.device), weight)
            out[:, first:last] = linear(rows, wide, None if bias is None else bias[first:last])

    def _packed(self, weight: GroupedWeight, dtype: torch.dtype) -> PackedGroups:
        num_rows, num_columns = weight.numbers.shape
        layout = RowLayout(weight.form, num_columns)
        content = torch.zeros(num_rows, layout.row_bytes, dtype=torch.uint8)
        numbers = weight.numbers.view(torch.uint8)
        content[:, : layout.num_bytes] = _halved(weight) if layout.is_halved else numbers
        parts = ((layout.scales_at, weight.scales), (layout.offsets_at, weight.offsets))
        for at, part in parts:
            if part is not None:
                found = part.contiguous().view(torch.uint8)
                content[:, at : at + found.shape[1]] = found
        packed = content.view(dtype).view(num_rows, 1, 1, -1).to(self.device)
        return PackedGroups(packed, num_rows, num_columns, weight.form)


def _fits(form: GroupForm) -> bool:
    """Return whether groups are of whole units, and units of one group."""
    return form.group_size % MIN_UNIT == 0


def _halved(weight: GroupedWeight) -> Tensor:
    """Return numbers of four bits, two in a byte: [N, bytes] of uint8."""
    zero = 0 if weight.offsets is not None else 1 << HALF_BITS - 1
    numbers = (weight.numbers + zero).view(torch.uint8)
    numbers = nn.functional.pad(numbers, (0, -numbers.shape[1] % (2 * RUN)))
    runs = numbers.view(len(numbers), -1, 2, RUN)
    return (runs[:, :, 0] | runs[:, :, 1] << HALF_BITS).flatten(1)


def _multiply(rows: Tensor, weight: PackedGroups, bias: Tensor | None, out: Tensor) -> None:
    tile, num_warps, num_stages = grouped_constants(len(rows), rows.dtype)
    if is_interpreted():
        num_warps, num_stages = 1, 1
    grid = (cdiv(len(rows), tile["ROWS"]), cdiv(weight.num_rows, tile["COLUMNS"]))
    multiply[grid](
        *(rows, *weight.parts(), bias, out, len(rows)),
        WIDTH=weight.num_rows,
        NUM_BYTES=weight.layout.num_bytes,
        HAS_BIAS=bias is not None,
        UNIT=weight.layout.unit,
        **weight.layout.constants(),
        **tile,
        num_warps=num_warps,
        num_stages=num_stages,
    )
