"""Sources of what is different each time a program runs."""

from collections.abc import Callable
from typing import NamedTuple


class Sources(NamedTuple):
    """Sources of time and randomness, which come in as arguments.

    clock: seconds, which only grow. now: seconds since 1970.
    """

    clock: Callable[[], float]
    now: Callable[[], float]
    random_bytes: Callable[[int], bytes]
