"""Turns of sessions on a driver, one after the other."""

from dataclasses import replace
from zlib import crc32

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, Sampling, Stopping
from tests.scheduler.driver import CONFIG, Driver

ROOMY = replace(CONFIG, max_num_batched_tokens=1024, max_model_len=1024)
TEXT = tuple(range(100, 116))
NUM_OUTPUTS = 4
OUTPUTS = (7,) * NUM_OUTPUTS
"""The token that the driver's steps sample."""


def turn(
    name: str,
    prompt: tuple[int, ...],
    *,
    tenant: str = "",
    session: str = "",
    priority: int = 0,
    max_tokens: int = NUM_OUTPUTS,
    retention_s: float | None = None,
) -> NewRequest:
    return NewRequest(
        name,
        prompt,
        Sampling(),
        Stopping(max_tokens),
        tenant=tenant,
        session=session,
        priority=priority,
        endpoint="chat",
        retention_s=retention_s,
    )


def another(name: str, num_tokens: int, max_tokens: int = NUM_OUTPUTS) -> NewRequest:
    """A request of its own, like no other."""
    first = crc32(name.encode()) >> 1
    return turn(name, (first, *range(1000, 999 + num_tokens)), max_tokens=max_tokens)


def roomy(num_blocks: int = 401, config: SchedulerConfig = ROOMY) -> Driver:
    return Driver(config, num_blocks, caches_prefixes=True)


def serve(driver: Driver, new: NewRequest, *, calls_tools: bool | None = None) -> None:
    """Run a request to its end, and say what its answer was."""
    assert driver.add(new) is None
    while new.id not in driver.finishes:
        driver.step()
    if calls_tools is not None:
        driver.scheduler.note_turn(new.id, driver.now, calls_tools=calls_tools)


def events(driver: Driver, name: str, reason: Reason) -> list[Event]:
    return [each for each in driver.finishes[name].timeline if each.reason is reason]


def num_cached(driver: Driver, name: str) -> int:
    return driver.finishes[name].num_cached_tokens


def busy(config: SchedulerConfig = ROOMY) -> Driver:
    """A session whose next turn is expected has kept blocks, and a long request runs."""
    driver = roomy(config=config)
    serve(driver, turn("a", TEXT), calls_tools=True)
    driver.add(replace(another("long", 8, max_tokens=50), tenant="long"))
    driver.step()
    return driver


def reasons(driver: Driver, name: str) -> list[Reason]:
    return [each.reason for each in driver.finishes[name].timeline]
