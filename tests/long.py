"""What is like what another test shows is marked `long`: `make long` runs it, `make test` does not.

Each table of what stands for the others is beside its tests, and says what it stands for.
"""

from collections.abc import Collection, Iterable

import pytest


def long_but_for(
    kept: Collection[object],
    name: str,
    parameters: Iterable[object],
    *,
    is_indirect: bool = False,
) -> pytest.MarkDecorator:
    """Parametrize a test by `name`, and mark as `long` the parameters that are not `kept`.

    Raises ValueError if something is kept that is no parameter: it would stand for nothing.
    """
    parameters = list(parameters)
    unknown = [each for each in kept if each not in parameters]
    if unknown:
        raise ValueError(f"kept, but no parameters of {name}: {unknown}")
    marked = [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)),
            marks=() if each in kept else pytest.mark.long,
        )
        for each in parameters
    ]
    scope = "module" if is_indirect else None
    return pytest.mark.parametrize(name, marked, indirect=is_indirect, scope=scope)
