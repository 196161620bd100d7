"""The life of this process: how old it is, and imports that no collection of garbage interrupts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


def process_age_s(now: float) -> float:
    """Since the operating system started it; `now` is in seconds since 1970."""
    return now - psutil.Process().create_time()


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage within the context, which is for imports and simulations: they make many
    objects and hardly any garbage, so that collections, which look at all of them again and again,
    take a sixth of the time. What was made is never looked at."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
