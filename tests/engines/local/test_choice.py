"""A request goes where most of its prompt was seen, unless that engine has clearly more to do."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.sharing import SharingTerms
from quire.engines.local.choice import AFFINITY, Candidate, choose
from quire.engines.local.placements import Placements
from quire.engines.local.seen_prefixes import SeenPrefixes, prefix_keys
from quire.engines.local.work import OutstandingWork
from quire.scheduler.policy import PolicyName
from quire.scheduler.request import NewRequest, Sampling, Stopping

SIZE = 4
amounts = st.integers(0, 4000).map(float)
candidates = st.lists(
    st.builds(Candidate, st.just(0), st.integers(0, 1000), amounts, amounts, st.integers(0, 9)),
    min_size=1,
    max_size=6,
).map(lambda found: [each._replace(number=number) for number, each in enumerate(found)])
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=20).map(tuple)
terms = st.builds(
    SharingTerms,
    salt=st.sampled_from((b"", b"one", b"two")),
    num_public_tokens=st.integers(0, 10),
    adapter=st.sampled_from(("", "lora")),
)


def request(
    prompt: tuple[int, ...] = (1,) * 40, number: int = 0, sharing: SharingTerms | None = None
) -> NewRequest:
    stopping = Stopping(max_tokens=20)
    return NewRequest(f"r{number}", prompt, Sampling(), stopping, sharing or SharingTerms())


@given(candidates)
def test_no_engine_with_less_to_do_has_seen_as_much(found: list[Candidate]) -> None:
    chosen = found[choose(found)]
    for each in found:
        is_behind = each.work_ahead >= chosen.work_ahead
        assert is_behind or each.num_matched < chosen.num_matched


@given(candidates)
def test_the_engine_that_has_seen_most_is_taken_unless_it_has_clearly_more_to_do(
    found: list[Candidate],
) -> None:
    chosen = found[choose(found)]
    most = max(each.num_matched for each in found)
    least = min(each.work_ahead for each in found)
    for each in found:
        if each.num_matched == most and each.work_ahead == least:
            assert (chosen.num_matched, chosen.work_ahead) == (most, least)
    assert chosen.work_ahead - least <= AFFINITY * most


@given(candidates, st.randoms(use_true_random=False))
def test_the_order_of_engines_does_not_matter(found: list[Candidate], chance: object) -> None:
    assert choose(reversed(found)) == choose(found)


@given(prompts, prompts, terms, terms)
def test_keys_are_equal_where_blocks_could_be_shared(
    one: tuple[int, ...], other: tuple[int, ...], own: SharingTerms, others: SharingTerms
) -> None:
    keys = prefix_keys(request(one, sharing=own), SIZE)
    theirs = prefix_keys(request(other, sharing=others), SIZE)
    assert len(keys) == len(one) // SIZE
    num_public = min(own.num_public_tokens, others.num_public_tokens)
    for index, (key, their) in enumerate(zip(keys, theirs, strict=False)):
        end = (index + 1) * SIZE
        is_public = end <= num_public
        may = own.adapter == others.adapter and (
            is_public or (own.salt == others.salt and _is_alike(own, others, end))
        )
        assert (key == their) == (one[:end] == other[:end] and may)


def _is_alike(own: SharingTerms, others: SharingTerms, end: int) -> bool:
    """Whether the same blocks up to there are public."""
    return min(own.num_public_tokens, end) // SIZE == min(others.num_public_tokens, end) // SIZE


def test_nothing_is_seen_of_a_prompt_of_which_all_is_computed() -> None:
    assert prefix_keys(replace(request(), prompt_logprobs=0), SIZE) == []


@given(st.lists(prompts, max_size=20), st.integers(1, 10))
def test_what_is_remembered_is_bounded_and_begins_prompts(
    given: list[tuple[int, ...]], capacity: int
) -> None:
    """No block is remembered without those before it."""
    seen, all_keys = SeenPrefixes(capacity), [prefix_keys(request(each), 1) for each in given]
    for keys in all_keys:
        seen.add(keys)
        assert seen.num_matched(keys) == min(len(keys), capacity)
    kept = {key for keys in all_keys for key in keys[: seen.num_matched(keys)]}
    assert len(kept) <= capacity
    assert all(not seen.num_matched([key]) for keys in all_keys for key in keys if key not in kept)
    seen.clear()
    assert not any(seen.num_matched(keys) for keys in all_keys)


@given(
    st.sampled_from(PolicyName),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), amounts), max_size=12),
    st.sampled_from("abc"),
    st.integers(0, 2),
)
def test_work_that_comes_after_a_request_does_not_count(
    policy: PolicyName, given: list[tuple[str, int, float]], tenant: str, priority: int
) -> None:
    work = OutstandingWork(policy)
    for other, urgency, amount in given:
        work.open(replace(request(), tenant=other, priority=urgency), amount)
    new = replace(request(), tenant=tenant, priority=priority)
    ahead = work.ahead_of(new, 10.0)
    assert 0 <= ahead <= work.total == sum(amount for _, _, amount in given)
    if policy is PolicyName.FCFS:
        assert ahead == work.total
    elif policy is PolicyName.PRIORITY:
        assert ahead == sum(amount for _, urgency, amount in given if urgency <= priority)
    else:
        own = sum(amount for other, _, amount in given if other == tenant)
        num_others = len({other for other, _, _ in given if other != tenant})
        assert own <= ahead <= own + num_others * (own + 10.0)
    for other, urgency, amount in given:
        work.close(replace(request(), tenant=other, priority=urgency), amount)
    assert work.total == work.ahead_of(new, 10.0) == 0


def placed(requests: list[NewRequest], policy: PolicyName = PolicyName.FCFS) -> list[int]:
    placements = Placements(2, policy, block_size=SIZE)
    return [placements.place(each, (0, 1), 0.0) for each in requests]


def different(number: int) -> tuple[int, ...]:
    return tuple(range(number * 100, number * 100 + 40))


def test_a_crowd_is_spread_and_conversations_stay() -> None:
    crowd = placed([request(different(number), number) for number in range(20)])
    assert Counter(crowd) == {0: 10, 1: 10}
    long = tuple(range(1000))
    turns = [request(long + different(number), number) for number in range(6)]
    assert len(set(placed(turns))) == 1
    assert set(placed([request(long + different(n), n) for n in range(100)])) == {0, 1}


def test_a_short_beginning_that_all_share_keeps_nobody_together() -> None:
    system = tuple(range(8))
    crowd = placed([request(system + different(number), number) for number in range(20)])
    assert Counter(crowd) == {0: 10, 1: 10}


def test_each_tenant_is_spread_whatever_the_others_have() -> None:
    """Tenant `a` has filled both engines; of `b` and `c` each has as much in both."""
    crowd = [replace(request(different(n), n), tenant="a") for n in range(40)]
    crowd += [replace(request(different(n), n), tenant="bc"[n % 2]) for n in range(40, 60)]
    numbers = placed(crowd, PolicyName.FAIR)
    for tenant in "bc":
        theirs = [n for n, each in zip(numbers, crowd, strict=True) if each.tenant == tenant]
        assert Counter(theirs) == {0: 5, 1: 5}


def test_an_urgent_request_goes_where_least_is_as_urgent() -> None:
    placements = Placements(2, PolicyName.PRIORITY, block_size=SIZE)
    first = placements.place(replace(request(different(0), 0), priority=0), (0, 1), 0.0)
    for number in range(1, 9):
        late = replace(request(different(number), number), priority=5)
        placements.place(late, (1 - first,), 0.0)
    urgent = replace(request(different(9), 9), priority=0)
    assert placements.place(urgent, (0, 1), 0.0) == 1 - first


def test_an_engine_that_is_free_again_is_chosen_again() -> None:
    placements = Placements(2, PolicyName.FCFS, block_size=SIZE)
    for number in range(4):
        placements.place(request(different(number), number), (0,), 0.0)
    assert placements.place(request(different(4), 4), (0, 1), 0.0) == 1
    for number in range(4):
        placements.end(f"r{number}")
        assert f"r{number}" not in placements
    assert placements.place(request(different(5), 5), (0, 1), 0.0) == 0
