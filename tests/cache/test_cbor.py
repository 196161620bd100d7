"""Canonical CBOR, against the examples of RFC 8949, appendix A."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache import cbor

EXAMPLES: tuple[tuple[cbor.Value, str], ...] = (
    (0, "00"),
    (1, "01"),
    (10, "0a"),
    (23, "17"),
    (24, "1818"),
    (25, "1819"),
    (100, "1864"),
    (1000, "1903e8"),
    (1000000, "1a000f4240"),
    (1000000000000, "1b000000e8d4a51000"),
    (18446744073709551615, "1bffffffffffffffff"),
    (-18446744073709551616, "3bffffffffffffffff"),
    (-1, "20"),
    (-10, "29"),
    (-100, "3863"),
    (-1000, "3903e7"),
    (None, "f6"),
    (b"", "40"),
    (bytes.fromhex("01020304"), "4401020304"),
    ("", "60"),
    ("a", "6161"),
    ("IETF", "6449455446"),
    ('"\\', "62225c"),
    ("\u00fc", "62c3bc"),
    ("\u6c34", "63e6b0b4"),
    ("\U00010151", "64f0908591"),
    ([], "80"),
    ([1, 2, 3], "83010203"),
    ([1, [2, 3], [4, 5]], "8301820203820405"),
    (list(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
)

VALUES = st.recursive(
    st.none() | st.integers(-(2**64), 2**64 - 1) | st.binary(max_size=300) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=30),
    max_leaves=20,
)


@pytest.mark.parametrize(("value", "encoded"), EXAMPLES)
def test_example_of_the_standard(value: cbor.Value, encoded: str) -> None:
    assert cbor.encode(value).hex() == encoded


@given(VALUES, VALUES)
def test_only_equal_values_have_equal_encodings(one: cbor.Value, other: cbor.Value) -> None:
    assert (cbor.encode(one) == cbor.encode(other)) == (one == other)


@given(st.lists(VALUES, max_size=4))
def test_an_array_is_made_of_its_encoded_values(values: list[cbor.Value]) -> None:
    assert cbor.array_of([cbor.encode(each) for each in values]) == cbor.encode(values)


def test_what_needs_more_than_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        cbor.encode(2**64)
