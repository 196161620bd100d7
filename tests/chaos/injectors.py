"""The things done to an engine, and how long its clients were without service then."""

import asyncio
import signal
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import psutil

from tests.chaos.subject import Subject
from tests.chaos.wire import Pulse

POLL_S = 0.005
WITHIN_S = 120.0
SILENCE_S = 0.25
"""No token for so long is a silence."""


async def beats(pulse: Pulse, number: int) -> None:
    """Wait until clients got so many parts of streams. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN_S):
        while len(pulse.beats_s) < number:
            await asyncio.sleep(POLL_S)


async def engine_of(subject: Subject) -> psutil.Process:
    """Wait for an engine that serves."""
    return await asyncio.to_thread(subject.wait_engine)


async def hit(subject: Subject, number: signal.Signals) -> float:
    """Send a signal to the engine that serves, and return when."""
    engine = await engine_of(subject)
    moment_s = time.monotonic()
    engine.send_signal(number)
    return moment_s


async def freeze(subject: Subject, seconds: float) -> None:
    """Stop the engine for a while that is too short to be taken for a hang."""
    engine = await engine_of(subject)
    engine.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        engine.send_signal(signal.SIGCONT)


def outages(moments_s: Sequence[float], pulse: Pulse) -> list[float]:
    """Return for each moment how long it took until tokens came again: to the end of the first
    silence after it. Tokens that were on their way come right after the moment; they end none. An
    engine that was ended again before it gave a token has not served."""
    lengths = []
    for moment_s in moments_s:
        later = pulse.beats_s[bisect_right(pulse.beats_s, moment_s) :]
        gaps = pairwise([moment_s, *later])
        end_s = next((after for before, after in gaps if after - before >= SILENCE_S), None)
        if end_s is not None:
            lengths.append(end_s - moment_s)
    return lengths
