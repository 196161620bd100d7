"""What an observer of the prefix cache is told, such as a router that sends a prompt to where its
blocks are. Names and fields follow vLLM's KV events.
"""

from enum import StrEnum
from typing import NamedTuple


class KVEventKind(StrEnum):
    STORED = "BlockStored"
    REMOVED = "BlockRemoved"
    CLEARED = "AllBlocksCleared"


class Medium(StrEnum):
    """Where a block lies; `GPU` is the device, whatever it is."""

    DEVICE = "GPU"
    HOST = "CPU"


class KVEvent(NamedTuple):
    """`block_hashes` and `token_ids` (all of these blocks', one after the other) are of a chain
    whose last block before them is `parent`. CLEARED has nothing beside its kind.
    """

    kind: KVEventKind
    block_hashes: tuple[bytes, ...] = ()
    parent: bytes | None = None
    token_ids: tuple[int, ...] = ()
    group: int = 0
    medium: Medium = Medium.DEVICE
    adapter: str = ""
