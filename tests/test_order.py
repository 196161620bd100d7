"""Files of tests that take minutes are begun before all others, and none is lost."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.order import LONGEST, TESTS, longest_first

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
