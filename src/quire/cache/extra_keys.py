"""Extra keys tell blocks of equal tokens apart: whose they are, and what their placeholder tokens
stand for.
"""

from collections.abc import Iterable
from typing import NamedTuple

from quire.cache import cbor
from quire.cache.sharing import PromptItem, SharingTerms


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
