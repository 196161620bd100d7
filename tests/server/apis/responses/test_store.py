"""The store of responses against a naive one that keeps a list."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.responses.asked import asked_of
from quire.server.apis.responses.builder import BodyBuilder, Origin
from quire.server.apis.responses.protocol import ResponseBody, ResponsesRequest
from quire.server.apis.responses.store import (
    MAX_DROPPED,
    OVERHEAD_BYTES,
    ResponseStore,
    ResponseStoreLimits,
    StoredResponse,
    stored_response,
)
from quire.server.observability.metrics import Eviction, ResponseCounts
from tests.profiles import cases

KEPT_S = 10.0
MAX_BYTES = 4 * (OVERHEAD_BYTES + 100)
OWNERS = st.sampled_from(["a", "a", "b"])
SIZES = st.sampled_from([2, 300, 1000, 5000])
NAMES = st.sampled_from([f"resp-{number}" for number in range(5)])


class Running(NamedTuple):
    """The run of a response that does not end by itself."""

    now: ResponseBody

    def body(self) -> ResponseBody:
        return self.now

    def stop(self) -> None:
        """Nothing runs."""

    async def cancel(self) -> None:
        """Nothing runs."""


def response(name: str, num_bytes: int, *, runs: bool = False) -> StoredResponse:
    asked = asked_of(ResponsesRequest(input="x"))
    body = BodyBuilder(asked, Origin(name, 0, "m", is_stored=True)).body("completed")
    return stored_response(body, (b"{}",), (), num_bytes - 2, Running(body) if runs else None)


@dataclass
class Naive:
    """Keeps all in one list, the least used first."""

    kept: list[tuple[str, str, int, float, bool]] = field(default_factory=list)

    def of(self, owner: str) -> list[tuple[str, str, int, float, bool]]:
        return [each for each in self.kept if each[0] == owner]

    def num_bytes(self, owner: str) -> int:
        return sum(OVERHEAD_BYTES + each[2] for each in self.of(owner))

    def remove(self, owner: str, name: str) -> bool:
        found = [each for each in self.kept if each[:2] == (owner, name)]
        self.kept = [each for each in self.kept if each not in found]
        return bool(found)

    def put(self, owner: str, name: str, num_bytes: int, now: float, *, runs: bool) -> bool:
        self.remove(owner, name)
        while self.num_bytes(owner) + OVERHEAD_BYTES + num_bytes > MAX_BYTES:
            idle = [each for each in self.of(owner) if not each[4]]
            if not idle:
                return False
            self.kept.remove(idle[0])
        self.kept.append((owner, name, num_bytes, now, runs))
        return True

    def find(self, owner: str, name: str, now: float) -> bool:
        for each in self.of(owner):
            if each[1] == name and (each[4] or each[3] + KEPT_S > now):
                self.kept.remove(each)
                self.kept.append((*each[:3], now, each[4]))
                return True
        return False

    def expire(self, now: float) -> None:
        self.kept = [each for each in self.kept if each[4] or each[3] + KEPT_S > now]


STEPS = st.one_of(
    st.tuples(st.just("put"), OWNERS, NAMES, SIZES, st.sampled_from([False, False, True])),
    st.tuples(st.just("find"), OWNERS, NAMES),
    st.tuples(st.just("remove"), OWNERS, NAMES),
    st.tuples(st.just("wait"), st.integers(0, 6)),
    st.tuples(st.just("expire")),
)


@cases(300)
@given(st.lists(STEPS, min_size=10, max_size=40))
def test_it_keeps_what_a_naive_store_keeps(steps: list[tuple[object, ...]]) -> None:
    now, naive, counts = [0.0], Naive(), ResponseCounts()
    store = ResponseStore(ResponseStoreLimits(MAX_BYTES, KEPT_S), lambda: now[0], counts)
    num_gone = 0
    for step in steps:
        match step:
            case ("put", str(owner), str(name), int(num_bytes), bool(runs)):
                was = len(naive.kept) - naive.remove(owner, name)
                fits = naive.put(owner, name, num_bytes, now[0], runs=runs)
                assert store.put(owner, response(name, num_bytes, runs=runs)) == fits
                num_gone += was + 1 - len(naive.kept)
            case ("find", str(owner), str(name)):
                found = store.find(owner, name)
                assert (found is not None) == naive.find(owner, name, now[0])
                assert found is None or found.id == name
            case ("remove", str(owner), str(name)):
                assert (store.remove(owner, name) is not None) == naive.remove(owner, name)
            case ("wait", int(wait_s)):
                now[0] += wait_s
            case _:
                was = len(naive.kept)
                naive.expire(now[0])
                num_gone += was - len(naive.kept)
                next_s = store.drop_expired()
                assert (next_s is None) == (not naive.kept)
                assert next_s is None or 0 < next_s <= KEPT_S
        assert (counts.num_stored, counts.num_bytes) == (
            len(naive.kept),
            naive.num_bytes("a") + naive.num_bytes("b"),
        )
        assert sum(counts.num_evicted.values()) == num_gone
    for owner in "ab":
        for number in range(5):
            found = store.find(owner, f"resp-{number}")
            assert (found is not None) == naive.find(owner, f"resp-{number}", now[0])


def test_many_that_expire_at_once_go_in_turns() -> None:
    now, counts = [0.0], ResponseCounts()
    store = ResponseStore(ResponseStoreLimits(1 << 30, KEPT_S), lambda: now[0], counts)
    for number in range(MAX_DROPPED + 5):
        store.put("a", response(f"resp-{number}", 2))
    now[0] = KEPT_S
    assert store.drop_expired() == 0
    assert counts.num_stored == 5
    assert store.drop_expired() is None
    assert counts.num_evicted[Eviction.EXPIRED] == MAX_DROPPED + 5
