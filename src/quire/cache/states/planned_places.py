"""Places of snapshots, and the likelihood that they are found again, by their use so far."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quire.cache.states.policy import SnapshotKind

WINDOW = 256
"""The counts of a kind are halved at so many places: new ones count for more."""
MANY = 2
"""Places that were found so often or more are of one kind."""


DOUBT = 0.1
"""A kind of which nothing is known counts as so many places that were found and as many that were
not. The next prompt goes on from one place at most, and nothing is known of where others part from
it: so the rungs of a ladder share the doubt of one kind."""


class PlaceUse(NamedTuple):
    """The use of a place: the kind of its snapshot, how often prompts ended their match with the
    cache there, MANY at most, and whether prompts have matched beyond it."""

    kind: int
    num_found: int = 0
    is_passed: bool = False


class PlannedPlaces:
    """The places where snapshots were planned, with and without one, the newest `max_places`; and
    how likely each is to be found again, by its use so far.

    In a conversation the end of its last output is found once, those before it hardly ever; where
    many prompts part is found again and again; and whether prompts go on from an output or leave a
    part of it out is a matter of the chat template. So it is learned, from places without a
    snapshot as well: what was evicted or never taken would have been found.
    """

    def __init__(self, max_places: int, num_rungs: int) -> None:
        self._max_places = max_places
        self._rung_doubt = DOUBT / max(num_rungs, 1)
        self._places: OrderedDict[bytes, PlaceUse] = OrderedDict()
        self._counts: dict[PlaceUse, tuple[int, int]] = {}

    def add(self, digest: bytes, kind: int) -> None:
        """Note a place, the end of the block of that digest, unless it is known."""
        if digest in self._places:
            return
        self._enter(digest, PlaceUse(kind))
        if len(self._places) > self._max_places:
            self._places.popitem(last=False)

    def note_found(self, digests: Sequence[bytes]) -> list[bytes]:
        """Note a prompt of which the K and V of these blocks were found: the last place in it would
        have served, and those before it are passed. Return the places whose use has changed."""
        changed: list[bytes] = []
        for digest in filter(self._places.__contains__, reversed(digests)):
            use = self._places[digest]
            if not changed:
                num_uses, num = self._counts.get(use, (0, 0))
                self._counts[use] = num_uses + 1, num
                self._enter(digest, use._replace(num_found=min(use.num_found + 1, MANY)))
            elif use.is_passed:
                break
            else:
                self._enter(digest, use._replace(is_passed=True))
            changed.append(digest)
        return changed

    def expected_uses(self, digest: bytes, kind: int) -> float:
        """Return how often a place will be found, by the likelihoods of being found once more; each
        is one half where nothing is known, and less for one of many rungs."""
        use = self._places.get(digest, PlaceUse(kind))
        likely = self._likelihood(use._replace(num_found=MANY))
        expected = likely / (1 - likely)
        for num_found in range(MANY - 1, use.num_found - 1, -1):
            expected = self._likelihood(use._replace(num_found=num_found)) * (1 + expected)
        return expected

    def _likelihood(self, use: PlaceUse) -> float:
        num_uses, num = self._counts.get(use, (0, 0))
        doubt = self._rung_doubt if use.kind >= SnapshotKind.LADDER else DOUBT
        return (min(num_uses, num) + doubt) / (num + 2 * DOUBT)

    def has_any(self, digests: Iterable[bytes]) -> bool:
        """Return whether one of these blocks ends at a place."""
        return any(map(self._places.__contains__, digests))

    def clear(self) -> None:
        """Forget all places, but not how likely they are found."""
        self._places.clear()

    def _enter(self, digest: bytes, use: PlaceUse) -> None:
        self._places[digest] = use
        num_uses, num = self._counts.get(use, (0, 0))
        if num == WINDOW:
            num_uses, num = num_uses // 2, num // 2
        self._counts[use] = num_uses, num + 1
