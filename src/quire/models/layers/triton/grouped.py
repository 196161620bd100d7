"""Linear layers on a GPU over weights of small integers with a scale for each group of columns,
which stay in their few bits, while x has more: W4A16 and W8A16."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from triton import cdiv

from quire.models.attention.triton.launch import DTYPES
from quire.models.layers.triton.grouped_kernel import multiply, widen
from quire.models.layers.triton.launch import grouped_constants
from quire.models.native.packed_weight import PackedWeight, join
from quire.models.triton_device import is_interpreted
from quire.models.weights.group_form import GroupForm
from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.lazy_weight import StoredWeight, form_of
from quire.models.weights.weight_kernel import WeightOutline

RUN = 32
"""Columns whose numbers are the low or the high halves of bytes that follow each other."""
MIN_UNIT = 16
"""The number of consecutive columns of one group: RUN or this number."""
ROW_BYTES = 16
"""The alignment of rows in bytes."""
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
        """The bytes of the integers: full runs, if a byte holds two."""
        num_runs = -(-self.num_columns // (2 * RUN))
        return num_runs * RUN if self.is_halved else self.num_columns

    @property
    def scales_at(self) -> int:
        return _padded(self.num_bytes)

    @property
    def offsets_at(self) -> int:
        return self.scales_at + self._num_scale_bytes

    @property
    def row_bytes(self) -> int:
        end = self.offsets_at + self._num_scale_bytes * self.form.has_offsets
        return _padded(end)

    @property
    def _num_scale_bytes(self) -> int:
        return self.num_columns // self.form.group_size * self.form.scale_bytes

    @property
    def unit(self) -> int:
        """Columns that follow each other, within a run and a group."""
        return MIN_UNIT if self.form.group_size % RUN else RUN

    def constants(self) -> dict[str, object]:
        """Return the constants of both kernels, which describe the layout of a row."""
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


class WeightRows(NamedTuple):
    """Rows of W of one form, whose bytes `content` begins with."""

    content: Tensor
    num_rows: int
    layout: RowLayout

    def parts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return views of its numbers, its scales and its offsets, each from where a first row has
        them."""
        layout, form = self.layout, self.layout.form
        number = torch.uint8 if layout.is_halved else torch.int8
        scale = torch.float16 if form.scale_bytes == 2 else torch.float32
        return (
            self.content.view(number),
            self.content[layout.scales_at :].view(scale),
            self.content[layout.offsets_at :].view(scale) if form.has_offsets else None,
        )


@dataclass(frozen=True, slots=True)
class PackedGroups(PackedWeight):
    """A weight in bytes: `packed` is [units of ROW_BYTES, 1, 1, numbers of W's dtype in a unit].

    forms: how many rows are of which form, one after the other.
    """

    forms: tuple[tuple[GroupForm, int], ...]

    def pieces(self) -> Iterator[WeightRows]:
        content = self.packed.detach().view(torch.uint8).flatten()
        for form, num_rows in self.forms:
            layout = RowLayout(form, self.num_columns)
            yield WeightRows(content, num_rows, layout)
            content = content[num_rows * layout.row_bytes :]


@dataclass(frozen=True, slots=True)
class TritonGrouped:
    """Packs weights that are stored in groups, onto `device`, and multiplies by them. A number of W
    is rounded to the dtype that is computed in, as the same weight would be without groups."""

    device: torch.device

    @property
    def num_bits(self) -> int:
        """0: each packed weight has its own."""
        return 0

    @property
    def panel_rows(self) -> int:
        """1: each row is by itself."""
        return 1

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

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight:
        """Join weights of equal K into one of all their rows, of which they become views. Those of
        one form are one product, others are multiplied one after the other."""
        whole, forms = join(weights, self.panel_rows), list[tuple[GroupForm, int]]()
        for each in weights:
            assert isinstance(each, PackedGroups), "it was packed here"
            for form, num_rows in each.forms:
                if forms and forms[-1][0] == form:
                    num_rows += forms.pop()[1]
                forms.append((form, num_rows))
        return PackedGroups(whole.packed, whole.num_rows, whole.num_columns, tuple(forms))

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K], rounded to its dtype."""
        assert isinstance(weight, PackedGroups), "it was packed here"
        dtype = weight.packed.dtype
        return torch.cat([_widened(each, range(each.num_rows), dtype) for each in weight.pieces()])

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]."""
        assert isinstance(weight, PackedGroups), "it was packed here"
        rows = x.reshape(-1, weight.num_columns).contiguous()
        multiplied = _multiply_widened if len(rows) >= MANY_ROWS else _multiply
        found, first = [], 0
        for piece in weight.pieces():
            last = first + piece.num_rows
            found.append(multiplied(rows, piece, None if bias is None else bias[first:last]))
            first = last
        out = found[0] if len(found) == 1 else torch.cat(found, -1)
        return out.view(*x.shape[:-1], weight.num_rows)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W, of one form: [..., K]. An index must be below N: a GPU does not tell in
        time."""
        assert isinstance(weight, PackedGroups), "it was packed here"
        (piece,) = weight.pieces()
        found = _rows(indices.flatten(), piece, weight.packed.dtype)
        return found.view(*indices.shape, weight.num_columns)

    def _packed(self, weight: GroupedWeight, dtype: torch.dtype) -> PackedGroups:
        num_rows, num_columns = weight.numbers.shape
        layout = RowLayout(weight.form, num_columns)
        content = torch.zeros(num_rows, layout.row_bytes, dtype=torch.uint8)
        numbers = weight.numbers.view(torch.uint8)
        content[:, : layout.num_bytes] = _halved(weight) if layout.is_halved else numbers
        for at, part in ((layout.scales_at, weight.scales), (layout.offsets_at, weight.offsets)):
            if part is not None:
                found = part.contiguous().view(torch.uint8)
                content[:, at : at + found.shape[1]] = found
        units = content.view(dtype).view(-1, 1, 1, ROW_BYTES // dtype.itemsize)
        forms = ((weight.form, num_rows),)
        return PackedGroups(units.to(self.device), num_rows, num_columns, forms)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ROW_BYTES) * ROW_BYTES


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


def _multiply(rows: Tensor, piece: WeightRows, bias: Tensor | None) -> Tensor:
    out = rows.new_empty(len(rows), piece.num_rows)
    tile, num_warps, num_stages = grouped_constants(len(rows), rows.dtype)
    if is_interpreted():
        num_warps, num_stages = 1, 1
    grid = (cdiv(len(rows), tile["ROWS"]), cdiv(piece.num_rows, tile["COLUMNS"]))
    if len(rows):
        multiply[grid](
            *(rows, *piece.parts(), bias, out, len(rows)),
            WIDTH=piece.num_rows,
            NUM_BYTES=piece.layout.num_bytes,
            HAS_BIAS=bias is not None,
            UNIT=piece.layout.unit,
            **piece.layout.constants(),
            **tile,
            num_warps=num_warps,
            num_stages=num_stages,
        )
    return out


def _multiply_widened(rows: Tensor, piece: WeightRows, bias: Tensor | None) -> Tensor:
    """Multiply by so many widened rows of W at a time that they take little memory."""
    out = rows.new_empty(len(rows), piece.num_rows)
    at_once = max(WIDENED_NUMBERS // piece.layout.num_columns, 1)
    for first in range(0, piece.num_rows, at_once):
        own = range(first, min(first + at_once, piece.num_rows))
        part = slice(own.start, own.stop)
        wide = _widened(piece, own, rows.dtype)
        out[:, part] = linear(rows, wide, None if bias is None else bias[part])
    return out


def _widened(piece: WeightRows, rows: range, dtype: torch.dtype) -> Tensor:
    device = piece.content.device
    return _rows(torch.arange(rows.start, rows.stop, device=device), piece, dtype)


def _rows(indices: Tensor, piece: WeightRows, dtype: torch.dtype) -> Tensor:
    num_columns = piece.layout.num_columns
    out = torch.empty(len(indices), num_columns, dtype=dtype, device=piece.content.device)
    if len(indices):
        grid = (len(indices), cdiv(num_columns, WIDENED_COLUMNS))
        constants = {**piece.layout.constants(), "COLUMNS": WIDENED_COLUMNS}
        widen[grid](indices.contiguous(), *piece.parts(), out, **constants)
    return out
