"""Permits of a few workers: who waits is served in a fair order, and nobody is lost."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.http.fair_queue import FairQueue, QueueFull

BYTES_PER_S = 100.0


@dataclass
class Desk:
    """A queue with one permit, its clock in the test's hands, and the order in which it served."""

    num_permits: int = 1
    now: float = 0.0
    served: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    num_held: int = 0
    most_held: int = 0

    def __post_init__(self) -> None:
        self.queue = FairQueue(self.num_permits, 10_000, BYTES_PER_S, lambda: self.now)

    async def come(self, tenant: str, size: int, name: str) -> None:
        """Somebody asks for a permit, and holds it until the next `end`."""

        async def visit() -> None:
            await self.queue.acquire(tenant, size)
            self.num_held += 1
            self.most_held = max(self.most_held, self.num_held)
            self.served.append(name)

        self.tasks.append(asyncio.create_task(visit()))
        await asyncio.sleep(0)

    async def end(self) -> None:
        """One of those who hold a permit is done."""
        self.num_held -= 1
        self.queue.release()
        for _ in range(3):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        while self.num_held:
            await self.end()
        await asyncio.gather(*self.tasks)


VISITS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(1, 500), st.sampled_from("come end cancel".split())
    ),
    max_size=40,
)


@given(VISITS, st.integers(1, 3))
def test_all_who_stay_are_served_and_never_too_many_at_once(
    visits: list[tuple[str, int, str]], num_permits: int
) -> None:
    async def run() -> None:
        desk = Desk(num_permits)
        gone: set[str] = set()
        for number, (tenant, size, what) in enumerate(visits):
            if what == "come":
                await desk.come(tenant, size, str(number))
            elif what == "end" and desk.num_held:
                await desk.end()
            elif what == "cancel" and desk.tasks and not desk.tasks[-1].done():
                desk.tasks.pop().cancel()
                gone.add(str(number))
        while desk.num_held:
            await desk.end()
        await asyncio.gather(*desk.tasks)
        assert len(desk.served) == len(desk.tasks)
        assert desk.most_held <= num_permits
        assert (desk.queue.num_waiting, desk.queue.waiting_bytes) == (0, 0)

    asyncio.run(run())


async def order(*visits: tuple[str, int, str]) -> list[str]:
    """Whom one permit serves after it was held while all of these came."""
    desk = Desk()
    await desk.come("x", 1, "first")
    for visit in visits:
        await desk.come(*visit)
    await desk.finish()
    return desk.served[1:]


def test_a_tenant_with_much_work_holds_no_other_up() -> None:
    much = [("a", 100, f"a{n}") for n in range(5)]
    served = asyncio.run(order(*much, ("b", 100, "b"), ("c", 100, "c")))
    assert set(served[:3]) == {"a0", "b", "c"}


def test_of_one_tenants_work_the_short_comes_first() -> None:
    served = asyncio.run(order(("a", 500, "long"), ("a", 10, "short"), ("a", 100, "middle")))
    assert served == ["short", "middle", "long"]


def test_long_work_is_not_passed_for_ever() -> None:
    async def run() -> list[str]:
        desk = Desk()
        await desk.come("a", 1, "first")
        await desk.come("a", 500, "long")  # to be done within 5 s, if nobody else came
        desk.now = 4.0
        await desk.come("a", 10, "sooner")
        desk.now = 5.0
        await desk.come("a", 10, "later")
        await desk.finish()
        return desk.served[1:]

    assert asyncio.run(run()) == ["sooner", "long", "later"]


def test_more_than_may_wait_is_refused_with_the_numbers() -> None:
    async def run() -> None:
        desk = Desk()
        await desk.come("a", 1, "first")
        await desk.come("a", 9_000, "waits")
        with pytest.raises(QueueFull, match="1 requests with 9000 bytes.*10000 bytes"):
            await desk.queue.acquire("b", 1_001)
        await desk.finish()

    asyncio.run(run())
