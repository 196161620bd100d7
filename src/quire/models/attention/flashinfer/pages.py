"""The blocks that sequences of a step read, as FlashInfer takes them."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from quire.cache.spec import AttentionPattern
from quire.models.batch import Batch


class Pages(NamedTuple):
    """The blocks of S sequences.

    starts: int32 [S + 1], on the host, where each sequence's begin in `ids`.
    ids: int32 [starts[-1]], on the device, the blocks from the first that a query sees on.
    last_sizes: int32 [S], on the host, the tokens in each sequence's last block.
    """

    starts: Tensor
    ids: Tensor
    last_sizes: Tensor


class Part(NamedTuple):
    """Sequences of a step that are computed by one call.

    numbers: their rows in the block tables.
    sizes: their tokens in this step.
    context_lens: their tokens in all.
    rows: their tokens' rows in the step.
    """

    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    context_lens: tuple[int, ...]
    rows: slice | Tensor

    @property
    def is_single(self) -> bool:
        """Whether each has one token."""
        return max(self.sizes) == 1


def parts_of(batch: Batch) -> tuple[Part, ...]:
    """Return the chunks of one token of a step, and its longer ones, where it has such."""
    sizes = [end - start for start, end in pairwise(batch.query_starts)]
    singles = [number for number, size in enumerate(sizes) if size == 1]
    longer = [number for number, size in enumerate(sizes) if size > 1]
    return tuple(_part(batch, sizes, numbers) for numbers in (singles, longer) if numbers)


def _part(batch: Batch, sizes: Sequence[int], numbers: Sequence[int]) -> Part:
    return Part(
        tuple(numbers),
        tuple(sizes[number] for number in numbers),
        tuple(batch.context_lens[number] for number in numbers),
        _rows(batch, numbers),
    )


def _rows(batch: Batch, numbers: Sequence[int]) -> slice | Tensor:
    """Return the rows of sequences: a slice where these follow each other."""
    starts = batch.query_starts
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return slice(starts[numbers[0]], starts[numbers[-1] + 1])
    rows = [row for number in numbers for row in range(starts[number], starts[number + 1])]
    return _to_device(torch.tensor(rows), batch.positions.device)


def find_pages(table: Tensor, part: Part, pattern: AttentionPattern, block_size: int) -> Pages:
    """Return the blocks that a part reads by its rows of a group's `table`.

    Those that no query of a sequence sees, since a window has passed them, are left out: what is
    seen is counted back from the end, so that the rest stays as it is. The ids are gathered on the
    device, for which the host does not wait.
    """
    lengths = list(zip(part.sizes, part.context_lens, strict=True))
    firsts = [pattern.first_needed(length - size) // block_size for size, length in lengths]
    ends = [-(-length // block_size) for _, length in lengths]
    counts = [end - first for first, end in zip(firsts, ends, strict=True)]
    starts = list(accumulate(counts, initial=0))
    shifts = [first - start for first, start in zip(firsts, starts, strict=False)]
    device = table.device
    numbers = _to_device(torch.tensor([counts, shifts, part.numbers]), device)
    owners = torch.repeat_interleave(numbers[0], output_size=starts[-1])
    columns = torch.arange(starts[-1], device=device) + numbers[1][owners]
    last_sizes = [
        length - (end - 1) * block_size for (_, length), end in zip(lengths, ends, strict=True)
    ]
    return Pages(
        torch.tensor(starts, dtype=torch.int32),
        table[numbers[2][owners], columns],
        torch.tensor(last_sizes, dtype=torch.int32),
    )


def padded(pages: Pages, num_seqs: int) -> Pages:
    """Return the pages of so many sequences: each that is added reads a token of the null block."""
    num_added = num_seqs - len(pages.last_sizes)
    if not num_added:
        return pages
    added = torch.arange(1, num_added + 1, dtype=torch.int32)
    return Pages(
        torch.cat((pages.starts, pages.starts[-1] + added)),
        torch.cat((pages.ids, pages.ids.new_zeros(num_added))),
        torch.cat((pages.last_sizes, torch.ones_like(added))),
    )


def _to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting; torch reuses pinned memory only when that is done."""
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)
