"""Laws of sessions on random loads, and faults planted on purpose, each of which its law must see.

what is kept           is found as long as others have room beside it, and not after its time
who waits for it       gets in within a bound; a turn that has lost much waits too
what a tenant keeps    is within its share
a turn                 goes on from one of its tenant, with a common beginning
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.cache.evictable_list import EvictableList, EvictionRank
from quire.cache.sharing import OPEN
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.sessions.kept_shares import KeptShares
from quire.scheduler.sessions.session import KnownSession, SessionTable
from quire.scheduler.sessions.sessions import LEAD_S, Sessions
from tests.scheduler.driver import BLOCK_SIZE, Driver
from tests.scheduler.sessions.turns import (
    NUM_OUTPUTS,
    OUTPUTS,
    ROOMY,
    another,
    events,
    num_cached,
    roomy,
    serve,
    turn,
)

NUM_BLOCKS = 400
FILLER = 30
"""Blocks of each of the requests that fill the rest of the cache."""
"""The blocks of the pool."""
SIZES = st.integers(2 * BLOCK_SIZE, 100)


def text_of(number: int, size: int) -> tuple[int, ...]:
    """A prompt of so many tokens that begins like no other."""
    return tuple(range(1000 * number, 1000 * number + size))


def check_kept(text_size: int, sizes: list[int]) -> None:
    """Others that have room beside what is kept take none of it."""
    driver, text = roomy(NUM_BLOCKS + 1), text_of(7, text_size)
    serve(driver, turn("a", text, retention_s=10_000.0))
    num_kept = driver.scheduler.stats.num_blocks_kept
    assert num_kept == text_size // BLOCK_SIZE
    room = (NUM_BLOCKS - num_kept) * BLOCK_SIZE - NUM_OUTPUTS
    for number, size in enumerate(sizes):
        serve(driver, another(f"other {number}", min(size, room)))
        assert driver.scheduler.stats.num_blocks_kept == num_kept
    serve(driver, turn("b", (*text, 1, 2)))
    assert num_cached(driver, "b") == num_kept * BLOCK_SIZE


def check_time(text_size: int, retention_s: float | None, seconds: float) -> None:
    """Kept blocks are let go when their time is over: the time that a client gave, or some minutes
    at most for a turn that does not come."""
    driver = roomy(NUM_BLOCKS + 1)
    serve(
        driver,
        turn("a", text_of(7, text_size), retention_s=retention_s),
        calls_tools=None if retention_s else True,
    )
    ended_s, longest_s = driver.now, retention_s or 400.0
    assert driver.scheduler.stats.num_blocks_kept
    driver.now += seconds
    serve(driver, another("other", 2, max_tokens=1))
    waited_s = driver.now - ended_s
    if waited_s > longest_s + 1.0:
        assert driver.scheduler.stats.num_blocks_kept == 0
    elif retention_s and waited_s < longest_s:
        assert driver.scheduler.stats.num_blocks_kept


def check_patience(sizes: list[int], pauses: list[int], beyond: float) -> None:
    """A new session gets in while others go on without end, and always some of them is expected."""
    driver = Driver(replace(ROOMY, max_num_seqs=16), NUM_BLOCKS + 1, caches_prefixes=True)
    texts = {number: text_of(number, size) for number, size in enumerate(sizes)}
    turns, due = dict.fromkeys(texts, 0), dict.fromkeys(texts, 0.0)
    came_s = None
    for _ in range(20 + 3 * int(LEAD_S)):
        for number, text in texts.items():
            name = f"{number}.{turns[number]}"
            if name in driver.finishes:
                driver.scheduler.note_turn(name, driver.now, calls_tools=True)
                texts[number], turns[number] = (*text, *OUTPUTS, turns[number]), turns[number] + 1
                due[number] = driver.now + pauses[number]
            elif name not in driver.news and driver.now >= due[number]:
                driver.add(turn(name, text))
        stats = driver.scheduler.stats
        num_free = stats.num_blocks_free + stats.num_blocks_cached - stats.num_blocks_kept
        if came_s is None and driver.now > 15 and stats.num_blocks_kept and stats.num_running:
            num_more = max(int(beyond * stats.num_blocks_kept), 1)
            driver.add(another("patient", BLOCK_SIZE * (num_free + num_more), max_tokens=1))
            came_s = driver.now
        driver.step()
        if came_s is not None and "patient" not in driver.waiting:
            return
        assert came_s is None or driver.now < came_s + 2 * LEAD_S, "held back for ever"


def check_lost(num_turns: int, size: int, share: float) -> None:
    """A turn waits for what is kept for others, unless it has lost less of its blocks than its
    remaining turns would save."""
    driver, text = roomy(NUM_BLOCKS + 1), text_of(1, size)
    for number in range(num_turns):
        last = (*text, *OUTPUTS * number)
        serve(driver, turn(f"b{number}", last, session="mine"))
    said = (*last, *OUTPUTS)
    num_free = NUM_BLOCKS - len(said) // BLOCK_SIZE
    num_evicted = int(share * len(said) / BLOCK_SIZE)
    for number, first in enumerate(range(0, num_free + num_evicted, FILLER)):
        size = min(FILLER, num_free + num_evicted - first)
        serve(driver, another(f"filler {number}", BLOCK_SIZE * size, max_tokens=1))
    serve(driver, turn("a", text_of(7, 20)), calls_tools=True)
    driver.add(another("long", 8, max_tokens=50))
    driver.step()
    assert driver.scheduler.stats.num_blocks_kept
    new = (*said, *range(5000, 5780 - len(said)))
    num_found = driver.scheduler.probe(new, OPEN).num_cached
    driver.add(turn("b", new, session="mine"))
    driver.step()
    num_lost = (len(said) - 1) // BLOCK_SIZE * BLOCK_SIZE - num_found
    assert ("b" in driver.waiting) == (num_lost * num_turns > num_found)


def check_share(weights: list[float], sizes: list[int]) -> None:
    """The first of tenants by their weights keeps no more than its share while the others have
    requests, whether or not it has one."""
    driver = roomy(NUM_BLOCKS + 1)
    for number, weight in enumerate(weights[1:], 1):
        long = another(f"long {number}", 4, max_tokens=100)
        assert driver.add(replace(long, tenant=f"t{number}", weight=weight)) is None
    most = int(weights[0] / sum(weights) * NUM_BLOCKS)
    for number, size in enumerate(sizes):
        new = turn(f"a{number}", text_of(number, size), tenant="t0", retention_s=10_000.0)
        serve(driver, replace(new, weight=weights[0]), calls_tools=number % 2 == 0)
        assert driver.scheduler.stats.num_blocks_kept <= most


TURNS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["", "mine", "yours"]),
        st.integers(0, 2),
        st.integers(2, 20),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=8,
)
"""The tenants, names, and prompts: which beginning, so many tokens of it, and so many of their own.
"""


def check_known(drawn: list[tuple[str, str, int, int, int]]) -> None:
    """A turn goes on from one of its tenant, whose prompt it has whole, or by its name half."""
    driver, news = roomy(NUM_BLOCKS + 1), dict[str, NewRequest]()
    for number, (tenant, session, first, size, num_own) in enumerate(drawn):
        prompt = (*text_of(first, size), *range(9000 + 10 * number, 9000 + 10 * number + num_own))
        new = news[f"r{number}"] = turn(f"r{number}", prompt, tenant=tenant, session=session)
        serve(driver, new)
        for event in events(driver, new.id, Reason.NEXT_TURN):
            before = news[event.other]
            assert before.tenant == tenant
            goes_on = begins_alike(prompt, before.prompt_token_ids, 1.0)
            is_longer = len(prompt) > len(before.prompt_token_ids)
            is_named = session and session == before.session
            halves = begins_alike(prompt, before.prompt_token_ids, 0.5)
            assert (goes_on and is_longer) or (is_named and halves)


def begins_alike(prompt: Sequence[int], before: Sequence[int], share: float) -> bool:
    """Whether a prompt has the full blocks of a share of the one before, and one at least."""
    num_blocks = len(before) // BLOCK_SIZE
    size = max(int(share * num_blocks), 1) * BLOCK_SIZE
    return tuple(prompt[:size]) == tuple(before[:size])


KEPT = given(SIZES, st.lists(st.integers(10, 800), min_size=1, max_size=6))
TIME = given(SIZES, st.none() | st.floats(1.0, 300.0), st.floats(0.0, 800.0))
PATIENCE = given(
    st.lists(st.integers(20, 60), min_size=3, max_size=5),
    st.lists(st.integers(1, 4), min_size=5, max_size=5),
    st.floats(0.0, 0.5),
)
LOST = given(st.integers(1, 5), st.integers(20, 100), st.floats(0.0, 1.0))
SHARE = given(
    st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=2, max_size=4),
    st.lists(st.integers(20, 400), min_size=1, max_size=6),
)
KNOWN = given(TURNS)


@KEPT
def test_what_is_kept_is_evicted_behind_all_else(text_size: int, sizes: list[int]) -> None:
    check_kept(text_size, sizes)


@TIME
def test_nothing_is_kept_after_its_time(
    text_size: int, retention_s: float | None, seconds: float
) -> None:
    check_time(text_size, retention_s, seconds)


@PATIENCE
@settings(max_examples=30)
def test_nobody_waits_for_ever_for_what_is_kept(
    sizes: list[int], pauses: list[int], beyond: float
) -> None:
    check_patience(sizes, pauses, beyond)


@LOST
def test_a_turn_that_has_lost_much_waits(num_turns: int, size: int, share: float) -> None:
    check_lost(num_turns, size, share)


@SHARE
def test_a_tenant_keeps_its_share_at_most(weights: list[float], sizes: list[int]) -> None:
    check_share(weights, sizes)


@KNOWN
def test_a_turn_goes_on_from_one_of_its_tenant(drawn: list[tuple[str, str, int, int, int]]) -> None:
    check_known(drawn)


def evicts_first_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def pop(evictable: EvictableList) -> int:
        ranks = reversed(EvictionRank)
        first = next(each for rank in ranks for each in evictable.ids_of(rank))
        evictable.remove(first)
        return first

    monkeypatch.setattr(EvictableList, "pop_oldest", pop)


def lets_nothing_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sessions, "advance", lambda _sessions, _now: None)


def lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sessions, "lets_held_in", lambda _sessions, _now: False)


def takes_what_is_kept_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def goes_on(_: Sessions, request: Request) -> bool:
        return request.session is not None and request.session.num_turns > 0

    monkeypatch.setattr(Sessions, "_goes_on", goes_on)


def knows_no_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptShares, "room_for", lambda _shares, _tenant, _weight, _num: [])


def forgets_who_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant without requests has the share of one that is alone."""
    room_for = KeptShares.room_for

    def alone(shares: KeptShares, tenant: str, weight: float, num_blocks: int) -> list[str] | None:
        if tenant not in shares._live and not shares._num_names.get(tenant):
            return []
        return room_for(shares, tenant, weight, num_blocks)

    monkeypatch.setattr(KeptShares, "room_for", alone)


def knows_no_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    find = SessionTable.find
    of_tenant = vars(KnownSession)["ids"].fget

    def of_anyone(
        table: SessionTable, _tenant: str, name: str, digests: Sequence[bytes], num_prompt: int
    ) -> KnownSession | None:
        return find(table, "", name, digests, num_prompt)

    monkeypatch.setattr(SessionTable, "find", of_anyone)
    monkeypatch.setattr(
        KnownSession,
        "ids",
        property(lambda session: [("", each) for _, each in of_tenant(session)]),
    )


def believes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    find = SessionTable.find

    def trusting(
        table: SessionTable, tenant: str, name: str, digests: Sequence[bytes], num_prompt: int
    ) -> KnownSession | None:
        found = find(table, tenant, name, digests, num_prompt)
        return found or next(iter(table._under((tenant, name)) if name else ()), None)

    monkeypatch.setattr(SessionTable, "find", trusting)


FIXED = settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
FAULTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[..., None]] = {
    evicts_first_what_is_kept: KEPT(check_kept),
    lets_nothing_go: TIME(check_time),
    lets_nobody_in: PATIENCE(check_patience),
    takes_what_is_kept_for_others: LOST(check_lost),
    knows_no_shares: SHARE(check_share),
    forgets_who_has_ended: SHARE(check_share),
    knows_no_tenants: KNOWN(check_known),
    believes_names: KNOWN(check_known),
}


@pytest.mark.parametrize("plant", FAULTS)
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        FIXED(FAULTS[plant])()
