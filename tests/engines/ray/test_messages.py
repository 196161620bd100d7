"""Routers see the beginnings of prompts that may share blocks, items come in their order, and
accounts of replicas add up."""

from dataclasses import replace
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.sharing import SharingTerms
from quire.engines.ray.accounts import ReplicaAccounts
from quire.engines.ray.inbox import Inbox
from quire.engines.ray.messages import ReplicaUpdate, routing_text
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import GAUGES, NO_STATS

prompts = st.lists(st.integers(0, 300_000), min_size=1, max_size=20).map(tuple)
terms = st.builds(
    SharingTerms,
    salt=st.sampled_from((b"", b"one", b"two")),
    num_public_tokens=st.integers(0, 10),
    adapter=st.sampled_from(("", "lora")),
)


def text(prompt: tuple[int, ...], sharing: SharingTerms) -> str:
    made = NewRequest("r", prompt, Sampling(), Stopping(1), sharing)
    return routing_text(made)


def common(one: object, other: object) -> int:
    pairs = zip(one, other, strict=False)  # type: ignore[call-overload]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(prompts, prompts, terms)
def test_texts_begin_alike_as_prompts_do(
    one: tuple[int, ...], other: tuple[int, ...], sharing: SharingTerms
) -> None:
    texts = text(one, sharing), text(other, sharing)
    assert [len(each) for each in texts] == [len(one), len(other)]
    assert common(*texts) == common(one, other)
    for each in texts:
        each.encode()  # no surrogates


@given(prompts, terms)
def test_texts_of_others_begin_alike_only_where_all_may_share(
    prompt: tuple[int, ...], sharing: SharingTerms
) -> None:
    other = replace(sharing, salt=sharing.salt + b"other")
    num_alike = common(text(prompt, sharing), text(prompt, other))
    assert num_alike == min(sharing.num_public_tokens, len(prompt))


@given(st.integers(0, 12).flatmap(lambda num: st.permutations(range(num))))
def test_items_come_out_in_their_order(numbers: list[int]) -> None:
    inbox = Inbox()
    out = [told.number for number in numbers for told in inbox.take(ReplicaUpdate(number))]
    assert out == sorted(numbers)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 3)),
            st.sampled_from(("lose a", "lose b", "anew")),
        ),
        max_size=20,
    )
)
def test_counts_stay_counted_and_gauges_go(
    operations: list[tuple[str, int, int] | str],
) -> None:
    """Held against sums by hand, read by one who adds up what ended engines had counted."""
    accounts = ReplicaAccounts()
    now: dict[str, tuple[int, int]] = {}
    total = before = 0
    for operation in operations:
        if operation == "anew":
            before = total
            accounts.begin_anew()
        elif isinstance(operation, str):
            name = operation[-1]
            accounts.lose(name)
            now.pop(name, None)
        else:
            name, more, running = operation
            count = now.get(name, (0, 0))[0] + more
            total += more
            now[name] = count, running
            accounts.take(name, NO_STATS._replace(num_generation_tokens=count, num_running=running))
        assert accounts.total.num_generation_tokens == total - before
        assert accounts.total.num_running == sum(running for _, running in now.values())
    assert "num_running" in GAUGES
