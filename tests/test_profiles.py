"""The default profile draws the same cases in every run, and `search` others."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAW = """
from hypothesis import given, strategies as st
from tests.profiles import cases, load_profile

load_profile()

@cases(100)
@given(st.integers(), st.floats(), st.text(max_size=5))
def cases_of(number, real, text):
    print(number, real, ascii(text))

cases_of()
"""


def drawn(profile: str, before: str = "") -> list[str]:
    """The cases of a property in a process of its own, where `before` has run."""
    environment = {**os.environ, "HYPOTHESIS_PROFILE": profile}
    done = subprocess.run(
        [sys.executable, "-c", before + DRAW],
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_every_run_draws_the_same_cases_whatever_modules_are_loaded() -> None:
    alone = drawn("default")
    assert len(alone) == 60
    assert drawn("default", "import quire.cache.kv_cache, quire.scheduler.scheduler\n") == alone


def test_a_search_draws_others_each_time_and_more_of_them() -> None:
    first, second = drawn("search"), drawn("search")
    assert len(first) >= 1000
    assert first != second
