"""The chain of digests: a pure function of salt and tokens, grown as the tokens grow."""

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_hash import extend_hashes, root_digest

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def hashes_of(token_ids: list[int], block_size: int, salt: bytes = b"") -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, token_ids, block_size=block_size, salt=salt)
    return hashes


@given(TOKENS, st.integers(1, 8), st.data())
def test_hashing_in_parts_equals_hashing_at_once(
    token_ids: list[int], block_size: int, data: st.DataObject
) -> None:
    hashes: list[bytes] = []
    cut = data.draw(st.integers(0, len(token_ids)))
    for part in (token_ids[:cut], token_ids):
        extend_hashes(hashes, part, block_size=block_size, salt=b"s")
    assert hashes == hashes_of(token_ids, block_size, b"s")
    assert len(hashes) == len(token_ids) // block_size


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_equal_digests_mean_equal_prefixes(
    left: list[int], right: list[int], block_size: int
) -> None:
    pairs = zip(hashes_of(left, block_size), hashes_of(right, block_size), strict=False)
    for index, (one, other) in enumerate(pairs):
        end = (index + 1) * block_size
        assert (one == other) == (left[:end] == right[:end])


def test_a_salt_changes_every_digest() -> None:
    plain, salted = hashes_of([1] * 8, 2), hashes_of([1] * 8, 2, b"x")
    assert not set(plain) & set(salted)
    assert root_digest(b"") != root_digest(b"\0")
