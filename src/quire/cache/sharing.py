"""The terms on which requests share blocks, and the extra keys that distinguish blocks of equal
tokens: their owner, and the items behind placeholder tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.cache import cbor


@dataclass(frozen=True, slots=True)
class PromptItem:
    """An image or the like in the token positions `start .. end`, told apart by the digest of its
    content: there the token ids are the same whatever it shows.
    """

    digest: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SharingTerms:
    """The terms on which a request shares cached blocks: only under equal salts, adapters and
    items. The first `num_public_tokens` are shared by all salts, in whole blocks.
    """

    salt: bytes = b""
    num_public_tokens: int = 0
    adapter: str = ""
    items: tuple[PromptItem, ...] = ()


OPEN = SharingTerms()
"""The terms of a request that shares its blocks with all others of these terms."""


class ExtraKeys(NamedTuple):
    """The extra keys of one block. `items` are digests with the start of each, relative to the
    block: negative where the item begins before it.
    """

    adapter: str = ""
    items: tuple[tuple[bytes, int], ...] = ()
    salt: bytes = b""

    def encoded(self) -> bytes:
        """Return the canonical CBOR of an array: the adapter as text, the items as arrays, the salt
        as bytes, each only if it is there. Without any the result is empty.
        """
        if self == NO_KEYS:
            return b""
        keys: list[cbor.Value] = [self.adapter] if self.adapter else []
        keys += self.items
        if self.salt:
            keys.append(self.salt)
        return cbor.encode(keys)


NO_KEYS = ExtraKeys()


def extra_keys(sharing: SharingTerms, first: int, last: int, *, block_size: int) -> list[ExtraKeys]:
    """Return the extra keys of the blocks `first .. last`. The adapter is in each. The salt is in
    the first block that is not wholly public, which tells all after it apart as well.
    """
    items = _items_by_block(sharing.items, first, last, block_size)
    salted = sharing.num_public_tokens // block_size
    return [
        ExtraKeys(
            sharing.adapter,
            tuple(items.get(index, ())),
            sharing.salt if index == salted else b"",
        )
        for index in range(first, last)
    ]


def _items_by_block(
    items: Iterable[PromptItem], first: int, last: int, block_size: int
) -> dict[int, list[tuple[bytes, int]]]:
    by_block: dict[int, list[tuple[bytes, int]]] = {}
    for item in items:
        end = -(-item.end // block_size)
        for index in range(max(item.start // block_size, first), min(end, last)):
            start = item.start - index * block_size
            by_block.setdefault(index, []).append((item.digest, start))
    return by_block
