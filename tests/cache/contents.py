"""What a block shows and to whom, token by token: the naive twin of the chain. And hashes, most of
them bad.
"""

from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from quire.cache.block_hash import BlockHash, HashAlgorithm, build_block_hash
from quire.cache.kv_events import KVEvent, KVEventKind
from quire.cache.sharing import PromptItem, SharingTerms

Shown: TypeAlias = tuple[object, ...]

SHA256 = build_block_hash(HashAlgorithm.SHA256, seed="tests", noise=b"")
SHA256_CBOR = build_block_hash(HashAlgorithm.SHA256_CBOR, seed="tests", noise=b"")


def _digest(digest: bytes) -> BlockHash:
    return BlockHash(digest, lambda parent, tokens, extra: digest)


def _first_byte(parent: bytes, tokens: bytes, extra: bytes) -> bytes:
    return SHA256.digest(parent, tokens, extra)[:1]


def _own_tokens_only(parent: bytes, tokens: bytes, extra: bytes) -> bytes:
    return SHA256.digest(b"", tokens, b"")


COLLIDING = (
    _digest(b"always"),
    _digest(bytes(32)),
    _digest(b""),
    BlockHash(b"\0", _first_byte),
    BlockHash(b"", _own_tokens_only),
)

ITEM_LENGTHS = {b"one": 2, b"other": 5}
"""Of a digest, since a content takes the same number of token places everywhere."""

ITEMS = st.builds(
    lambda digest, start: PromptItem(digest, start, start + ITEM_LENGTHS[digest]),
    st.sampled_from(sorted(ITEM_LENGTHS)),
    st.integers(0, 20),
)
SHARINGS = st.builds(
    SharingTerms,
    salt=st.sampled_from([b"", b"a", b"b"]),
    num_public_tokens=st.integers(0, 12),
    adapter=st.sampled_from(["", "a"]),
    items=st.just(()) | st.lists(ITEMS, max_size=2).map(tuple),
)


def shown(sharing: SharingTerms, tokens: Sequence[int], index: int, block_size: int) -> Shown:
    """All that the KV of block `index` depends on, and who may share it."""
    end = (index + 1) * block_size
    places = [
        (
            token,
            frozenset(
                (item.digest, place - item.start)
                for item in sharing.items
                if item.start <= place < item.end
            ),
        )
        for place, token in enumerate(tokens[:end])
    ]
    salt = b"" if end <= sharing.num_public_tokens else sharing.salt
    return sharing.adapter, salt, tuple(places)


def replay(event: KVEvent, told: set[tuple[int, bytes]]) -> None:
    blocks = {(event.group, digest) for digest in event.block_hashes}
    assert len(blocks) == len(event.block_hashes)
    if event.kind is KVEventKind.STORED:
        assert not blocks & told
        told |= blocks
    elif event.kind is KVEventKind.REMOVED:
        assert blocks <= told
        told -= blocks
    else:
        told.clear()
