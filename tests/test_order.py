"""Files of tests that take minutes are begun before all others, and none is lost; a random order is
that of its seed.
"""

from itertools import groupby
from operator import itemgetter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.order import LONGEST, TESTS, longest_first, shuffled

FILES = tuple(
    TESTS / name
    for name in (
        *("bench/test_gpu_acceptance.py", "bench/test_command.py", "cache/test_block_pool.py"),
        *("chaos/test_chaos.py", "e2e/test_disk.py", "e2e/restarts/test_quarantine.py"),
        *("engine/test_fidelity.py", "test_structure.py"),
    )
)


@given(st.lists(st.sampled_from(FILES)))
def test_each_file_comes_once_and_the_long_ones_first(files: list[Path]) -> None:
    order = longest_first(files)
    assert sorted(order) == sorted(set(files))
    others = [
        file for file in order if not any((TESTS / n) in (file, *file.parents) for n in LONGEST)
    ]
    assert order[len(order) - len(others) :] == others
    assert [files.count(file) for file in others] == sorted(map(files.count, others), reverse=True)


def test_what_is_named_as_long_is_there() -> None:
    assert all((TESTS / name).exists() for name in LONGEST)


def test_the_longest_is_begun_first() -> None:
    acceptance, others = FILES[0], [FILES[3], FILES[4], FILES[1]]
    assert longest_first([*others[::-1], acceptance]) == [acceptance, *others]


TESTS_OF_FILES = st.lists(st.tuples(st.sampled_from(FILES), st.integers(0, 99)), unique=True)


@given(TESTS_OF_FILES, st.integers(0, 9))
def test_a_random_order_has_each_test_once_and_those_of_a_file_together(
    tests: list[tuple[Path, int]], seed: int
) -> None:
    order = shuffled([(file, (file, number)) for file, number in tests], seed)
    assert sorted(order) == sorted(tests)
    assert len([file for file, _ in groupby(order, itemgetter(0))]) == len(dict(tests))


@given(TESTS_OF_FILES, st.sampled_from(FILES), st.integers(0, 9))
def test_a_file_by_itself_has_the_order_that_it_has_among_others(
    tests: list[tuple[Path, int]], file: Path, seed: int
) -> None:
    of_file = [(path, number) for path, number in tests if path == file]
    order = shuffled([(path, (path, number)) for path, number in tests], seed)
    assert [test for test in order if test[0] == file] == shuffled(
        [(path, (path, number)) for path, number in of_file], seed
    )


def test_seeds_give_other_orders_of_files_and_of_tests() -> None:
    tests = [(file, (file, number)) for file in FILES for number in range(20)]
    orders = [shuffled(tests, seed) for seed in range(5)]
    assert len({tuple(dict.fromkeys(file for file, _ in order)) for order in orders}) == 5
    first = FILES[0]
    assert len({tuple(number for file, number in order if file == first) for order in orders}) == 5
