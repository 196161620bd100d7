"""Checks that end in every way, for the tests of what runs them."""

import os
import time
from collections.abc import Iterator

from bench.gpu.check import Finding, Place


def right(place: Place) -> Iterator[Finding]:
    yield Finding("one and one", {"sum": 2, "took_ms": 0.5})


def faulty(place: Place) -> Iterator[Finding]:
    yield Finding("a sum", {"sum": 3}, "3 is not 2")
    yield Finding("another", {"sum": 2})


def crashing(place: Place) -> Iterator[Finding]:
    yield Finding("before the crash", {})
    raise RuntimeError("the device is gone")


def killed(place: Place) -> Iterator[Finding]:
    yield Finding("before the kill", {})
    os.abort()


def hanging(place: Place) -> Iterator[Finding]:
    yield Finding("before the hang", {})
    print("still here", flush=True)
    time.sleep(600)


def once(place: Place) -> Iterator[Finding]:
    """Right the first time, in the folder that checks share; faulty ever after."""
    been = place.folder / "been"
    yield Finding("first time", {}, "ran again" if been.exists() else None)
    been.touch()
