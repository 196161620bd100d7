"""The order of tests: files that take minutes first, where several processes take them, or at
random with `--shuffle-seed`.

Begun last, a file that takes minutes would let the other processors wait for its end. A random
order, of files and of the tests of each, shows a test that depends on the tests before it.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest

TESTS = Path(__file__).parent
LONGEST = (
    *("bench/test_gpu_acceptance.py", "chaos", "e2e", "engines"),
    *("server/llm", "models/attention/test_backends.py", "engine/states", "models/layers"),
)
"""Files and folders under tests/ whose few tests are long, the longest first."""
Item = TypeVar("Item")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle-seed",
        type=int,
        help="run files, and the tests of each file, in the random order of this seed",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = _shuffle_seed(config)
    return None if seed is None else f"order of tests: --shuffle-seed {seed}"


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


def shuffled(items: Iterable[tuple[Path, Item]], seed: int) -> list[Item]:
    """Return the items in a random order of files, and each file's in a random order of their own:
    that order depends on the file and the seed alone, so that a file can be run again by itself.
    """
    of_file: dict[Path, list[Item]] = defaultdict(list)
    for file, item in items:
        of_file[file].append(item)
    for file, each in of_file.items():
        random.Random(f"{seed} {file.name}").shuffle(each)
    files = sorted(of_file)
    random.Random(seed).shuffle(files)
    return [item for file in files for item in of_file[file]]


class Shuffle:
    """Puts tests in a random order before pytest brings those together that share a parameter of a
    fixture for a whole file, which would else be made again and again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = shuffled([(item.path, item) for item in items], self._seed)


def pytest_configure(config: pytest.Config) -> None:
    seed = _shuffle_seed(config)
    if seed is not None:
        config.pluginmanager.register(Shuffle(seed))


def _shuffle_seed(config: pytest.Config) -> int | None:
    seed = config.getoption("--shuffle-seed")
    return seed if isinstance(seed, int) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one file stay in their order. In a single process everything does: no processor
    waits there for another."""
    if is_one_of_several(config) and _shuffle_seed(config) is None:
        places = {file: place for place, file in enumerate(longest_first(it.path for it in items))}
        items.sort(key=lambda item: places[item.path])
