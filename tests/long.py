"""Marks `long` what another test stands for: `make long` runs it, `make test` does not.

Each table of what stands for the others is beside its tests, and says what it stands for.
"""

from collections.abc import Collection, Iterable

import pytest


def rest_is_long(kept: Collection[object], parameters: Iterable[object]) -> list[object]:
    """Return parameters for a fixture, of which those that are not `kept` are marked `long`.

    Raises ValueError if something is kept that is no parameter: it would stand for nothing.
    """
    parameters = list(parameters)
    unknown = [each for each in kept if each not in parameters]
    if unknown:
        raise ValueError(f"what stands for others is not among them: {unknown}")
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)),
            marks=() if each in kept else pytest.mark.long,
        )
        for each in parameters
    ]


def long_but_for(
    kept: Collection[object], name: str, parameters: Iterable[object]
) -> pytest.MarkDecorator:
    """Parametrize a test by `name`, or by several that commas part, as `rest_is_long` says.

    Raises ValueError if something is kept that is no parameter.
    """
    return pytest.mark.parametrize(name, rest_is_long(kept, parameters))
