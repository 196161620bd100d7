"""The form of a weight whose numbers have scales in groups, without torch."""

from typing import NamedTuple


class GroupForm(NamedTuple):
    """The form of a `GroupedWeight`, which determines its size. Scales and offsets have
    `scale_bytes` each."""

    group_size: int
    num_bits: int
    scale_bytes: int
    has_offsets: bool
