"""The division of a recurrent module among ranks, as its family knows it.

in_proj_qkv   | rows of 4 key heads | rows of 4 key heads | rows of 8 value heads |
rank 1 of 2               keys 2, 3             keys 2, 3            values 4 to 7
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Units:
    """The parts of a module of which every rank has equally many, such as heads.

    words: their name, with the field of the configuration that counts them.
    are_shared: fewer of them than ranks are possible, so that several ranks have the same one.
    """

    count: int
    words: str
    are_shared: bool = False


class Span(NamedTuple):
    """Rows of a weight that lie together: `size` rows for each of the units."""

    units: Units
    size: int = 1

    @property
    def num_rows(self) -> int:
        return self.units.count * self.size


Spans = tuple[Span, ...]


class GroupNorm(NamedTuple):
    """A module that norms each group of `group_size` elements by itself, behind an optional
    gate."""

    name: str
    groups: Units
    group_size: int


@dataclass(frozen=True, slots=True)
class Division:
    """The parts of a recurrent module that ranks divide; everything else stays whole. Names are
    those within the module.

    rows: linear layers and convolutions of single channels, by their outputs, and other tensors, by
        their rows.
    inputs: linear layers that are given what belongs to a rank's units, and whose products are
        summed over all ranks.
    counts: integers among the attributes: each is the number of rows of its spans.
    norm: the norm over groups, whose weight is among `rows`; None for none.
    """

    rows: Mapping[str, Spans]
    inputs: Mapping[str, Span]
    counts: Mapping[str, Spans] = field(default_factory=dict)
    norm: GroupNorm | None = None

    @property
    def units(self) -> Iterator[Units]:
        """The units that must divide among the ranks, each one or more times."""
        for spans in (*self.rows.values(), *self.counts.values()):
            yield from (span.units for span in spans)
        yield from (span.units for span in self.inputs.values())
