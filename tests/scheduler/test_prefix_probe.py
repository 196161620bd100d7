"""A probe tells what the next admission will find, and changes nothing."""

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.prefix_miss import MissKind
from quire.cache.sharing import SharingTerms
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.scheduler.driver import BLOCK_SIZE, Driver

PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=12).map(tuple)
SALTS = st.sampled_from((b"", b"ann", b"bob"))
ASKED = st.lists(st.tuples(PROMPTS, SALTS), min_size=1, max_size=12)


def admitted(driver: Driver, name: str, prompt: tuple[int, ...], salt: bytes) -> int:
    """How many tokens a request of this prompt finds cached."""
    new = NewRequest(name, prompt, Sampling(), Stopping(max_tokens=2), SharingTerms(salt))
    assert driver.add(new) is None
    driver.run()
    return driver.finishes[name].num_cached_tokens


@given(asked=ASKED, probed=ASKED)
def test_it_tells_what_the_next_admission_finds(
    asked: list[tuple[tuple[int, ...], bytes]], probed: list[tuple[tuple[int, ...], bytes]]
) -> None:
    driver = Driver(num_blocks=13, caches_prefixes=True)
    for index, (prompt, salt) in enumerate(asked):
        for other, other_salt in probed:
            driver.scheduler.probe(other, SharingTerms(other_salt))
        told = driver.scheduler.probe(prompt, SharingTerms(salt))
        assert told == driver.scheduler.probe(prompt, SharingTerms(salt))
        assert told.num_on_device == told.num_cached == admitted(driver, f"r{index}", prompt, salt)
        assert (told.miss is None) == (
            (len(prompt) - 1) // BLOCK_SIZE > 0
            and told.num_cached == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        )


@given(asked=ASKED, probed=ASKED)
def test_nothing_is_taken_moved_or_renewed(
    asked: list[tuple[tuple[int, ...], bytes]], probed: list[tuple[tuple[int, ...], bytes]]
) -> None:
    """A cache that is probed evicts in the same order as one that is not."""
    found = []
    for probes in (False, True):
        driver = Driver(num_blocks=9, caches_prefixes=True)
        hits = []
        for index, (prompt, salt) in enumerate(asked):
            before = driver.cache.usage
            for other, other_salt in probed if probes else ():
                driver.scheduler.probe(other, SharingTerms(other_salt))
            assert driver.cache.usage == before
            driver.cache.check()
            hits.append(admitted(driver, f"r{index}", prompt, salt))
        found.append((hits, driver.cache.usage))
    assert found[0] == found[1]


def test_why_no_more_is_cached_is_told() -> None:
    driver = Driver(caches_prefixes=True)
    assert driver.scheduler.probe((1, 2, 3, 4, 5), SharingTerms(b"ann")).miss == (MissKind.NEW, 0)
    admitted(driver, "a", (1, 2, 3, 4, 5), b"ann")
    for prompt, salt, cached, miss in (
        ((1, 2, 3, 4, 5), b"ann", 4, None),
        ((1, 2, 3, 9, 5), b"ann", 2, (MissKind.DIFFERS, 3)),
        ((1, 2, 3, 4, 5), b"bob", 0, (MissKind.SALT, 0)),
        ((1, 2), b"ann", 0, (MissKind.TOO_SHORT, 2)),
    ):
        told = driver.scheduler.probe(prompt, SharingTerms(salt))
        assert (told.num_cached, told.miss) == (cached, miss)
