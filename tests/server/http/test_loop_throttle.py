"""What comes at once is done one piece in an iteration of the loop, in rotation, none forgotten."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from quire.server.http.loop_throttle import LoopThrottle


@dataclass
class Crowd:
    """Callers that come at once; `went` are their tenants and the iterations of the loop in which
    they went on."""

    throttle: LoopThrottle = field(default_factory=lambda: LoopThrottle(lambda: 0.0))
    went: list[tuple[str, int]] = field(default_factory=list)
    iteration: int = 0

    async def come(self, tenants: str, gone: frozenset[int] = frozenset()) -> None:
        """Those with the numbers in `gone` leave while they wait."""
        counting = asyncio.get_running_loop().call_soon(self._count)
        callers = [asyncio.create_task(self._call(tenant)) for tenant in tenants]
        await asyncio.sleep(0)
        for number in gone:
            callers[number % len(callers)].cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        counting.cancel()

    async def _call(self, tenant: str) -> None:
        await self.throttle.wait(tenant)
        self.went.append((tenant, self.iteration))

    def _count(self) -> None:
        self.iteration += 1
        asyncio.get_running_loop().call_soon(self._count)


def went(tenants: str, gone: frozenset[int] = frozenset()) -> list[tuple[str, int]]:
    async def run() -> Crowd:
        crowd = Crowd()
        await crowd.come(tenants, gone)
        return crowd

    return asyncio.run(run()).went


@given(st.text("abc", min_size=1, max_size=30), st.frozensets(st.integers(0, 29), max_size=5))
def test_one_goes_on_in_an_iteration_and_all_who_stay_do(
    tenants: str, gone: frozenset[int]
) -> None:
    in_order = went(tenants, gone)
    iterations = [iteration for _, iteration in in_order]
    assert len(set(iterations)) == len(iterations)
    left = {number % len(tenants) for number in gone}
    assert len(tenants) - len(left) <= len(in_order) <= len(tenants)


def test_a_crowd_of_one_tenant_holds_no_other_up() -> None:
    tenants = [tenant for tenant, _ in went("a" * 50 + "b")]
    assert tenants.index("b") <= 2


def test_who_comes_alone_goes_on_at_once() -> None:
    async def run() -> None:
        throttle = LoopThrottle(lambda: 0.0)
        for _ in range(3):
            taking = asyncio.create_task(throttle.wait("a"))
            await asyncio.sleep(0)
            assert taking.done()
            await asyncio.sleep(0)

    asyncio.run(run())
