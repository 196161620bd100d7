"""What every run of the tests has in common: its cases, its random numbers, its threads.

torch has one thread, here and in every server started from here: the models are tiny, so that
threads would only wait for each other. Triton's kernels are interpreted, which needs no GPU;
`TRITON_INTERPRET=0` runs them on one.
"""

import gc
import os
import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.certificates import trust_nobody
from tests.interpreter import spare_the_interpreter
from tests.profiles import load_profile

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch loads
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton loads

pytest_plugins = ["tests.models.fidelity_table", "tests.order", "tests.skips"]

if TYPE_CHECKING:
    from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
    from tests.models.reference import References

trust_nobody()
load_profile()
spare_the_interpreter()


def pytest_collection_finish() -> None:
    keep_what_is_there()


def keep_what_is_there() -> None:
    """Let no collection of garbage look at what was imported and collected: it stays, and is so
    much that each would take a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def what_a_module_imports_is_kept() -> Iterator[None]:
    yield
    keep_what_is_there()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Start each test from the same global state of `random`, and of torch where it is loaded, so
    that it does not depend on the tests that ran before."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def references(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> "References":
    """In a folder that all processes of a run share."""
    from tests.models.reference import References  # brings torch
    from tests.order import is_one_of_several

    if not is_one_of_several(pytestconfig):
        return References(tmp_path_factory.mktemp("references"))
    folder = tmp_path_factory.getbasetemp().parent / "references"
    folder.mkdir(exist_ok=True)
    return References(folder)


@pytest.fixture(scope="session")
def w8a8_kernel() -> "W8A8Kernel":
    from quire.models.native.linear.quantised.w8a8 import bind_w8a8  # brings torch
    from tests.instructions import library_with_products

    built = library_with_products()
    found = bind_w8a8(built)
    assert found is not None
    return found
