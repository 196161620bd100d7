"""The chain of digests: a pure function of tokens and sharing, grown as the tokens grow."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_hash import (
    BlockHash,
    HashAlgorithm,
    build_block_hash,
    group_key,
    group_of,
)
from quire.cache.chain import Chain
from quire.cache.sharing import OPEN, PromptItem, SharingTerms
from tests.cache.contents import SHA256, SHA256_CBOR, SHARINGS, shown

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
SIMILAR = st.lists(st.integers(0, 1), max_size=24)
PROMPTS = st.tuples(SIMILAR, SHARINGS)
HASHES = st.sampled_from([SHA256, SHA256_CBOR])


def digests_of(
    token_ids: list[int],
    block_size: int,
    sharing: SharingTerms = OPEN,
    block_hash: BlockHash = SHA256,
) -> list[bytes]:
    chain = Chain(block_hash, block_size, sharing)
    chain.extend(token_ids)
    return chain.digests


@given(TOKENS, st.integers(1, 8), SHARINGS, HASHES, st.data())
def test_hashing_in_parts_equals_hashing_at_once(
    token_ids: list[int],
    block_size: int,
    sharing: SharingTerms,
    block_hash: BlockHash,
    data: st.DataObject,
) -> None:
    chain = Chain(block_hash, block_size, sharing)
    cut = data.draw(st.integers(0, len(token_ids)))
    for part in (token_ids[:cut], token_ids):
        chain.extend(part)
    assert chain.digests == digests_of(token_ids, block_size, sharing, block_hash)
    assert len(chain.digests) == len(token_ids) // block_size


@given(PROMPTS, PROMPTS, st.integers(1, 8), HASHES)
def test_equal_digests_mean_equal_prefixes(
    one_prompt: tuple[list[int], SharingTerms],
    other_prompt: tuple[list[int], SharingTerms],
    block_size: int,
    block_hash: BlockHash,
) -> None:
    (left, one_reuse), (right, other_reuse) = one_prompt, other_prompt
    ones = digests_of(left, block_size, one_reuse, block_hash)
    others = digests_of(right, block_size, other_reuse, block_hash)
    for index, (one, other) in enumerate(zip(ones, others, strict=False)):
        one_shown = shown(one_reuse, left, index, block_size)
        other_shown = shown(other_reuse, right, index, block_size)
        if one == other:
            assert one_shown == other_shown
        elif one_reuse == other_reuse:
            assert one_shown != other_shown


@given(SIMILAR, st.integers(1, 8), st.integers(0, 24))
def test_salts_part_after_the_last_block_that_is_wholly_public(
    token_ids: list[int], block_size: int, num_public: int
) -> None:
    one, other = (
        digests_of(token_ids, block_size, SharingTerms(salt, num_public)) for salt in (b"a", b"b")
    )
    num_shared = min(num_public // block_size, len(one))
    assert one[:num_shared] == other[:num_shared]
    assert one[:num_shared] == digests_of(token_ids, block_size)[:num_shared]
    assert not set(one[num_shared:]) & set(other[num_shared:])


def test_an_adapter_and_a_salt_of_one_name_are_not_the_same() -> None:
    tokens = [1] * 8
    salted = digests_of(tokens, 2, SharingTerms(b"x"))
    adapted = digests_of(tokens, 2, SharingTerms(adapter="x"))
    assert not set(salted) & set(adapted) | set(salted) & set(digests_of(tokens, 2))


@pytest.mark.parametrize("block_hash", [SHA256, SHA256_CBOR])
def test_an_item_at_two_places_and_two_items_at_one_do_not_collide(block_hash: BlockHash) -> None:
    placeholders = [7] * 8
    sharings = [
        SharingTerms(items=(PromptItem(digest, start, start + 2),))
        for digest in (b"cat", b"dog")
        for start in range(4)
    ]
    firsts = [digests_of(placeholders, 4, sharing, block_hash)[0] for sharing in sharings]
    assert len(set(firsts)) == len(sharings)


def test_a_reproducible_digest_is_that_of_its_cbor() -> None:
    seeded = build_block_hash(HashAlgorithm.SHA256_CBOR, seed="0", noise=b"unused")
    root = sha256(bytes.fromhex("6130")).digest()  # the text "0"
    assert seeded.root == root
    first = sha256(bytes.fromhex("835820") + root + bytes.fromhex("82011903e8f6")).digest()
    extra = bytes.fromhex("836161824169204173")  # ["a", [b"i", -1], b"s"]
    second = sha256(bytes.fromhex("835820") + first + bytes.fromhex("820203") + extra).digest()
    sharing = SharingTerms(b"s", 2, items=(PromptItem(b"i", 1, 3),))
    plain = digests_of([1, 1000], 2, block_hash=seeded)
    assert plain == [first]
    chain = Chain(seeded, 2, sharing)
    chain.extend([1, 1000, 2, 3])
    assert chain.parent_digest(0) == root
    assert chain.extra(1).items == ((b"i", -1),)
    assert seeded.digest(first, chain.tokens(1), extra) == second


def test_a_root_is_random_unless_it_is_seeded() -> None:
    for algorithm in HashAlgorithm:
        roots = [build_block_hash(algorithm, seed=None, noise=noise).root for noise in (b"1", b"2")]
        assert roots == [b"1", b"2"]
        seeded = [build_block_hash(algorithm, seed="s", noise=noise) for noise in (b"1", b"2")]
        assert seeded[0] == seeded[1]
        assert seeded[0].root != build_block_hash(algorithm, seed="t", noise=b"1").root


@given(st.binary(max_size=40), st.integers(0, 2**16 - 1))
def test_a_key_tells_its_group(digest: bytes, group: int) -> None:
    assert group_of(group_key(digest, group), digest) == group
