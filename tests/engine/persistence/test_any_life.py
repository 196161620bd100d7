"""Any requests, of several tenants, in engines that end at any step over a folder that is damaged
in between: every text is the oracle's, and no accounts are broken.
"""

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import event, given
from hypothesis import strategies as st

from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL
from quire.cache.states.policy import SnapshotPolicy
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from tests.engine.persistence.disk_world import DiskWorld, ask, disk_world
from tests.engine.persistence.test_disk_cache import CHUNKS, SHAPE, WINDOW
from tests.engine.toy_engine import MAX_MODEL_LEN, Shape, alone
from tests.profiles import cases

TENANTS = (SharingTerms(), SharingTerms(b"one", 8), SharingTerms(b"two", 8))


def roomy(shape: Shape) -> Shape:
    """The shape with room for any request: one may need 64 blocks where there are three groups."""
    more = 36 if len(shape.layers) == 3 else 0
    return replace(shape, num_blocks=shape.num_blocks + more)


shapes = st.builds(
    Shape,
    block_size=st.sampled_from([2, 4]),
    num_blocks=st.integers(30, 80),
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.integers(4, 32),
    caches_prefixes=st.just(True),
    watermark=st.just(0.0),
    late=st.booleans(),
    layers=st.sampled_from([SHAPE.layers, (WINDOW, WINDOW), (FULL, WINDOW, CHUNKS)]),
    num_host_blocks=st.sampled_from([0, 10]),
).map(roomy)

recurrent_shapes = st.builds(
    lambda shape, layers, num_states, num_host_states, interval: roomy(
        replace(
            shape,
            layers=layers,
            num_states=num_states,
            num_host_states=num_host_states,
            snapshots=SnapshotPolicy(interval=interval),
        )
    ),
    shapes,
    st.sampled_from([(None, FULL), (FULL, None, WINDOW), (None, None)]),
    st.integers(2, 12),
    st.sampled_from([0, 3]),
    st.sampled_from([0, 4, 8]),
)


def damage(folder: Path, chance: random.Random) -> None:
    """Change some of the files, each in some way."""
    for path in folder.glob("[0-9a-f]*/*/*.kv"):
        if chance.random() > 0.2:
            continue
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        kind = chance.choice(("flip", "cut", "drop"))
        if kind == "drop":
            path.unlink()
        else:
            path.write_bytes(content if kind == "flip" else content[: len(content) // 2])


def ask_for_some(world: DiskWorld, chance: random.Random) -> list[NewRequest]:
    """Hand in some requests, a few of which are aborted, with steps between them."""
    asked = []
    for number in range(chance.randrange(1, 7)):
        stem, length = chance.randrange(3), chance.randrange(1, MAX_MODEL_LEN - 6)
        prompt = tuple((stem + token * 5) % 24 for token in range(length))
        new = ask(str(number), prompt, sharing=chance.choice(TENANTS))
        asked.append(new)
        world.add(new)
        for _ in range(chance.randrange(3)):
            if world.engine.has_work:
                world.step()
        if chance.random() < 0.1:
            world.abort(new.id)
        if chance.random() < 0.1:
            world.engine.reset_prefix_cache()
    return asked


def check(world: DiskWorld, shape: Shape, asked: list[NewRequest]) -> None:
    """All that was said is right, and all of it if the request has come to its end."""
    for new in asked:
        expected = alone(ask("", new.prompt_token_ids), shape.layers)
        said = world.tokens_of(new.id)
        assert said == expected[: len(said)]
        deltas = world.deltas[new.id]
        if deltas and deltas[-1].finish is not None:
            is_aborted = deltas[-1].finish.reason is Reason.ABORTED
            assert is_aborted or said == expected


def live(shape: Shape, seed: int) -> int:
    """Let engines follow each other; return how many tokens they have loaded."""
    chance = random.Random(seed)
    num_loaded = 0
    with TemporaryDirectory() as folder:
        for _ in range(4):
            max_bytes = chance.choice((4000, 1 << 20))
            with disk_world(Path(folder), shape, max_bytes=max_bytes) as world:
                asked = ask_for_some(world, chance)
                ends_after = chance.choice((chance.randrange(30), 1 << 20))
                for _ in range(ends_after):
                    if not world.engine.has_work:
                        break
                    world.step()
                check(world, shape, asked)
                num_loaded += world.store.stats.num_loaded_tokens
            if chance.random() < 0.5:
                damage(Path(folder), chance)
    return num_loaded


@cases(40)
@given(shapes, st.integers(0, 1 << 30))
def test_texts_are_right_whatever_the_folder_holds(shape: Shape, seed: int) -> None:
    event(f"loaded {live(shape, seed) > 0}")


@cases(25)
@given(recurrent_shapes, st.integers(0, 1 << 30))
def test_texts_are_right_whatever_states_the_folder_holds(shape: Shape, seed: int) -> None:
    event(f"loaded {live(shape, seed) > 0}")
