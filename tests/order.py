"""The order in which several processes take files of tests: those first that start processes and
take minutes. Begun last, one of them would let the other processors wait for its end.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST = ("bench/test_gpu_acceptance.py", "chaos", "e2e")
"""Files and folders under tests/, the longest first."""


def is_one_of_several(config: pytest.Config) -> bool:
    """Return whether pytest-xdist started this process for a part of the tests."""
    return hasattr(config, "workerinput")


def longest_first(files: Iterable[Path]) -> list[Path]:
    """Files under tests/, one for each test: each of them once, those of `LONGEST` in its order,
    then the others, and among equals the files of many tests before those of few."""
    num_tests = Counter(files)
    return sorted(num_tests, key=lambda file: (_place(file), -num_tests[file]))


def _place(file: Path) -> int:
    begins = (file.is_relative_to(TESTS / each) for each in LONGEST)
    return next((place for place, is_there in enumerate(begins) if is_there), len(LONGEST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one file stay in their order. In a single process everything does: no processor
    waits there for another."""
    if is_one_of_several(config):
        places = {file: place for place, file in enumerate(longest_first(it.path for it in items))}
        items.sort(key=lambda item: places[item.path])
