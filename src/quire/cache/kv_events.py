"""Events report the content of the prefix cache to an observer, such as a router that sends a
prompt to the engine with its blocks. Names and fields follow vLLM's KV events."""

from enum import StrEnum
from typing import NamedTuple


class KVEventKind(StrEnum):
    """The kinds of events, with vLLM's names."""

    STORED = "BlockStored"
    REMOVED = "BlockRemoved"
    CLEARED = "AllBlocksCleared"


class Medium(StrEnum):
    """The memory in which a block lies; `GPU` is the device, whatever it is."""

    DEVICE = "GPU"
    HOST = "CPU"


class KVEvent(NamedTuple):
    """One event of the prefix cache.

    `block_hashes` and `token_ids` (those of all these blocks, one after the other) are of a chain
    whose last block before them is `parent`. A CLEARED event has nothing beside its kind.
    """

    kind: KVEventKind
    block_hashes: tuple[bytes, ...] = ()
    parent: bytes | None = None
    token_ids: tuple[int, ...] = ()
    group: int = 0
    medium: Medium = Medium.DEVICE
    adapter: str = ""
