"""Values of options are parsed from text, and what is wrong is told with what is expected."""

import pytest

from quire.models.optimizations import Optimization
from quire.server.cli.option_values import some_of

parse = some_of(*Optimization)


def test_several_choices_have_commas_between_them() -> None:
    assert parse("huge-pages, amx") == (Optimization.HUGE_PAGES, Optimization.AMX)


def test_an_unknown_choice_is_told_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"expected some of {', '.join(Optimization)}, got 'mmx'"):
        parse("huge-pages,mmx")
