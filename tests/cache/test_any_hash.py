"""The cache's state machine on prompts that are nearly equal: that is where a hash that collides, a
forgotten salt or a lost parent would share a wrong block.
"""

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.cache.sharing import PromptItem, SharingTerms
from quire.cache.spec import FULL
from tests.cache.cache_machine import GROUPS, CacheMachine
from tests.cache.contents import COLLIDING, SHA256
from tests.profiles import cases

SMALL_SHARINGS = st.builds(
    SharingTerms,
    salt=st.sampled_from([b"", b"", b"a"]),
    num_public_tokens=st.integers(0, 3),
    items=st.sampled_from(
        [
            (),
            (),
            (PromptItem(b"one", 0, 2),),
            (PromptItem(b"one", 1, 3),),
            (PromptItem(b"c", 1, 3),),
        ]
    ),
)
PROMPTS = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=7),
    SMALL_SHARINGS,
    st.integers(0, 3),
    st.sampled_from([False, False, False, True]),
)


CONFIGS = st.builds(
    CacheConfig,
    num_blocks=st.integers(5, 30),
    block_size=st.integers(1, 3),
    groups=st.just((FULL,)) | GROUPS,
    max_chunk_tokens=st.just(4),
    block_hash=st.sampled_from([SHA256, *COLLIDING]),
    enable_kv_cache_events=st.just(True),
)


@given(CONFIGS, st.lists(PROMPTS, min_size=2, max_size=14))
@cases(500)
def test_similar_prompts_share_nothing_wrong_under_any_hash(
    config: CacheConfig, prompts: list[tuple[list[int], SharingTerms, int, bool]]
) -> None:
    """The same machine, going through each prompt to its end: hits are as many as can be."""
    machine = CacheMachine()
    machine.build(config)
    for tokens, sharing, keeps, resets in prompts:
        num_live = len(machine.live)
        machine.admit(list(tokens), sharing, 0)
        if len(machine.live) > num_live:
            for _ in tokens:
                machine.grow(num_live, [])
            if resets:
                machine.reset()
            machine.advance(num_live, 1.0)
        machine.accounts_balance()
        machine.events_tell_what_can_be_found()
        machine.every_group_has_what_its_next_token_can_see()
        while len(machine.live) > keeps:
            machine.release(keeps)
