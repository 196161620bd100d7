"""Keeps which of several engines has which requests, and what each is known to have to do."""

from collections.abc import Collection
from dataclasses import dataclass, field

from quire.engines.local.choice import Candidate, choose
from quire.engines.local.seen_prefixes import SeenPrefixes, prefix_keys
from quire.engines.local.work import OutstandingWork
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.shares import OUTPUT_PRICE, PROMPT_PRICE
from quire.scheduler.step import Delta

FIRST_GUESS = 128.0
"""An output is expected to have so many tokens until some have ended, and then as many as these had
in the mean, of which the newer ones count more."""
GUESS_WEIGHT = 0.05
MAX_KEPT_BLOCKS = 1 << 17
"""So many blocks are remembered of each engine at most, some 15 MB."""


@dataclass(slots=True)
class RequestPlacement:
    """The place of one request: the engine that has it, the work that it still has of its prompt
    and of its output, and all engines that had it."""

    request: NewRequest
    index: int
    prompt_work: float
    output_work: float
    events: list[Event] = field(default_factory=list)


class _Engine:
    """One engine, as far as it is known here."""

    def __init__(self, policy: PolicyName) -> None:
        self.work = OutstandingWork(policy)
        self.seen = SeenPrefixes(MAX_KEPT_BLOCKS)
        self.num_routed = 0


class Placements:
    """Chooses engines for requests, and keeps which has which. Their cached blocks are of
    `block_size` tokens."""

    def __init__(self, num_engines: int, policy: PolicyName, *, block_size: int) -> None:
        self._engines = [_Engine(policy) for _ in range(num_engines)]
        self._block_size = block_size
        self._placements: dict[str, RequestPlacement] = {}
        self._num_expected = FIRST_GUESS

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._placements

    def index_of(self, request_id: str) -> int | None:
        """Return the engine that has a request, None if it has ended."""
        placement = self._placements.get(request_id)
        return None if placement is None else placement.index

    def limit_blocks(self, num_blocks: int) -> None:
        """Remember no more blocks of an engine than it has."""
        for engine in self._engines:
            engine.seen = SeenPrefixes(min(num_blocks, MAX_KEPT_BLOCKS))

    def place(self, request: NewRequest, among: Collection[int], now: float) -> int:
        """Choose an engine among those of these numbers, the one of the request that this one is
        forked from if it is one of them, and note that it has the request. One that was elsewhere
        before goes on."""
        before = self._placements.get(request.id)
        if before is not None:
            self.end(request.id)
        output_work = OUTPUT_PRICE * min(self._num_expected, request.stopping.max_tokens)
        parent = None if request.fork_of is None else self.index_of(request.fork_of)
        if parent is not None and parent in among:
            index, num_new = parent, 0
        else:
            index, num_new = self._choose(request, among, output_work)
        placement = RequestPlacement(request, index, PROMPT_PRICE * num_new, output_work)
        placement.events = [] if before is None else before.events
        placement.events.append(Event(now, Reason.ROUTED, 0, str(index)))
        self._engines[index].work.open(request, placement.prompt_work + output_work)
        self._placements[request.id] = placement
        return index

    def _choose(
        self, request: NewRequest, among: Collection[int], output_work: float
    ) -> tuple[int, int]:
        """Return an engine and how many tokens of the prompt are new to it, which it has seen from
        then on."""
        keys, num_tokens = prefix_keys(request, self._block_size), len(request.prompt_token_ids)
        found = {}
        for each in among:
            engine = self._engines[each]
            num_matched = min(engine.seen.num_matched(keys) * self._block_size, num_tokens - 1)
            work = PROMPT_PRICE * (num_tokens - num_matched) + output_work
            ahead = engine.work.ahead_of(request, work)
            total, num_routed = engine.work.total, engine.num_routed
            found[each] = Candidate(each, num_matched, ahead, total, num_routed)
        index = choose(found.values())
        num_new = num_tokens - found[index].num_matched
        self._engines[index].seen.add(keys)
        self._engines[index].num_routed += num_new
        return index, num_new

    def note_events(self, events: tuple[tuple[str, Event], ...]) -> None:
        """Note which prompts are computed."""
        for request_id, event in events:
            if event.reason is Reason.FIRST_TOKEN:
                placement = self._placements.get(request_id)
                if placement is not None and placement.prompt_work:
                    work = self._engines[placement.index].work
                    work.reduce(placement.request, placement.prompt_work)
                    placement.prompt_work = 0.0

    def with_route(self, last: Delta) -> Delta:
        """Return the last delta of a request with its engines in the timeline, and note how long
        outputs are."""
        placement, finish = self._placements.get(last.request_id), last.finish
        if placement is None or finish is None:
            return last
        if placement.request.stopping.max_tokens:
            self._num_expected += GUESS_WEIGHT * (finish.num_output_tokens - self._num_expected)
        timeline = sorted((*placement.events, *finish.timeline), key=lambda event: event.time_s)
        return last._replace(finish=finish._replace(timeline=tuple(timeline)))

    def route_of(self, request_id: str) -> Event:
        """Return the event that tells of the engine that has a request."""
        return self._placements[request_id].events[-1]

    def end(self, request_id: str) -> None:
        """Note that a request has ended, or that the engine that had it has not any more."""
        placement = self._placements.pop(request_id, None)
        if placement is not None:
            work = self._engines[placement.index].work
            work.close(placement.request, placement.prompt_work + placement.output_work)

    def forget_prefixes(self, index: int) -> None:
        """Note that an engine has nothing cached."""
        self._engines[index].seen.clear()
