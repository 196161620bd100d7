"""What `make test` leaves to `make long` has something there that stands for it."""

import pytest

from tests.long import rest_is_long
from tests.models.families import SERVED
from tests.models.reference import PROVEN
from tests.models.representatives import FAMILIES


def test_what_stands_for_others_is_one_of_them() -> None:
    assert len(rest_is_long(FAMILIES, PROVEN)) == len(PROVEN)
    with pytest.raises(ValueError, match="gpt5"):
        rest_is_long(["gpt5"], PROVEN)


def test_every_way_of_attention_is_in_every_run() -> None:
    kept = {SERVED[name].attention for name in FAMILIES if name in SERVED}
    assert kept == {family.attention for family in SERVED.values()}


def test_each_stands_for_something_else() -> None:
    assert len(set(FAMILIES.values())) == len(FAMILIES)
