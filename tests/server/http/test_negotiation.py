"""Forms of answers that clients name, and do not."""

import pytest

from quire.server.http.negotiation import takes


@pytest.mark.parametrize(
    ("header", "is_taken"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0.001", True),
        ("gzip; q=0", False),
        ("gzip;q=0.000, br", False),
        ("gzip;q=0, gzip", True),
        ("gzip;q=", True),
        ("*", False),
        ("x-gzip, identity", False),
        ("", False),
    ],
)
def test_a_coding_is_taken_by_name_unless_its_weight_is_0(header: str, is_taken: bool) -> None:
    assert takes(header, "gzip") == is_taken
