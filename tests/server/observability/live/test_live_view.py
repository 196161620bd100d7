"""A view says of one's own requests what there is, of those of others nothing that tells them
apart; and pictures and changes say the same."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from quire.cache.live.block_watch import FIRST_SET, apply_runs
from quire.scheduler.live.live_frame import LiveFrame, LivePace, TokenTimes
from quire.scheduler.reasons import Reason
from quire.server.observability.live.engine_picture import EnginePicture
from quire.server.observability.live.live_view import (
    BlockTotals,
    EngineFrame,
    LiveView,
    Moment,
    PreemptedRequest,
)
from quire.server.observability.live.wire import (
    Figures,
    LiveChanges,
    LivePicture,
    RequestTimes,
)
from quire.server.observability.timelines import ANOTHER
from tests.server.observability.live.frames import MadeUpEngine, entered, event, progress, whole

NUM_BLOCKS = 9
SHAPE = BlockTotals(NUM_BLOCKS, 0, 16)
FIGURES = Figures(1, 2, 0, 3, 0.25, 4, 1.5, 6.0, None, {})
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 5), st.sampled_from("ab"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.just(""), st.just(0)),
        st.tuples(st.just("hold"), st.integers(0, 5), st.just(""), st.integers(1, NUM_BLOCKS - 1)),
        st.just(("tell", 0, "", 0)),
    ),
    max_size=40,
)


class Feed:
    """Views of one engine, each with all that it has told of."""

    def __init__(self, *tenants: str | None) -> None:
        self.picture = EnginePicture(NUM_BLOCKS)
        self.views = [LiveView(SHAPE, "m", tenant) for tenant in tenants]
        self.now = 0.0

    def take(self, frame: LiveFrame, *preempted: PreemptedRequest) -> list[LiveChanges]:
        self.now += 1
        sets = self.picture.sets | dict(frame.sets)
        self.picture.apply(frame)
        return [view.apply(self.told(frame, sets, *preempted)) for view in self.views]

    def told(
        self, frame: LiveFrame, sets: dict[int, tuple[int, ...]], *preempted: PreemptedRequest
    ) -> EngineFrame:
        return EngineFrame(frame, sets, preempted, FIGURES, Moment(1000 + self.now, self.now))

    def late(self, tenant: str | None) -> LivePicture:
        """The picture of who comes only now."""
        view = LiveView(SHAPE, "m", tenant)
        view.apply(self.told(self.picture.whole(), self.picture.sets))
        return view.picture(Moment(1000 + self.now, self.now), FIGURES)

    def pictures(self) -> list[LivePicture]:
        return [view.picture(Moment(1000 + self.now, self.now), FIGURES) for view in self.views]


class Reader:
    """A client that takes in what a view has told."""

    def __init__(self) -> None:
        self.codes = [-1] * NUM_BLOCKS
        self.sets: dict[int, tuple[int, ...]] = {}
        self.requests: dict[int, tuple[str, str]] = {}

    def take(self, told: LiveChanges | LivePicture) -> None:
        new = told.requests if isinstance(told, LivePicture) else told.entered
        phases = {each.n: each.phase for each in told.progress}
        self.requests |= {each.n: (each.id, phases[each.n]) for each in new}
        self.sets |= dict(told.sets)
        apply_runs(self.codes, told.runs)
        for number in () if isinstance(told, LivePicture) else told.left:
            del self.requests[number]

    def seen(self) -> tuple[list[object], list[tuple[str, str]]]:
        cells: list[object] = [
            sorted(self.requests[each][0] for each in self.sets[code])
            if code >= FIRST_SET
            else code
            for code in self.codes
        ]
        return cells, sorted(self.requests.values())


def act(engine: MadeUpEngine, step: tuple[str, int, str, int]) -> None:
    kind, number, tenant, block_id = step
    if kind == "enter" and number not in engine.tenants:
        engine.enter(number, tenant)
    elif kind == "leave" and number in engine.tenants:
        engine.leave(number)
    elif kind == "hold" and number in engine.tenants:
        engine.hold(number, block_id)


def fresh(
    step: tuple[str, int, str, int], index: int, names: dict[int, int]
) -> tuple[str, int, str, int]:
    """A number that has left is never used again."""
    kind, number, tenant, block_id = step
    if kind == "enter":
        names[number] = index
    return kind, names.get(number, -1), tenant, block_id


@given(steps=STEPS)
def test_changes_add_up_to_the_picture(steps: list[tuple[str, int, str, int]]) -> None:
    engine, feed = MadeUpEngine(NUM_BLOCKS), Feed(None, "a")
    readers, names = [Reader(), Reader()], dict[int, int]()
    for index, step in enumerate([*steps, ("tell", 0, "", 0)]):
        act(engine, fresh(step, index, names))
        if step[0] != "tell":
            continue
        for reader, changes in zip(readers, feed.take(engine.frame()), strict=True):
            reader.take(changes)
        for reader, picture, tenant in zip(readers, feed.pictures(), (None, "a"), strict=True):
            for told in (picture, feed.late(tenant)):
                other = Reader()
                other.take(told)
                assert other.seen() == reader.seen()
        cells, requests = readers[1].seen()
        own = {f"r{number}" for number, tenant in engine.tenants.items() if tenant == "a"}
        assert {id for id, _ in requests} == own
        assert all(set(cell) <= own for cell in cells if isinstance(cell, list))


@given(steps=STEPS, others=STEPS)
def test_a_key_is_told_nothing_of_others_but_that_they_hold_a_block(
    steps: list[tuple[str, int, str, int]], others: list[tuple[str, int, str, int]]
) -> None:
    """Two engines, of which one has more requests of others on the same blocks: no bit of what the
    key is told differs."""
    engine, feed = MadeUpEngine(NUM_BLOCKS), Feed("a")
    more, fuller = MadeUpEngine(NUM_BLOCKS), Feed("a")
    more.enter(10_000, "b")
    names = dict[int, int]()
    crowd = iter(others)
    for index, step in enumerate([*steps, ("tell", 0, "", 0)]):
        act(engine, fresh(step, index, names))
        act(more, fresh(step, index, names))
        held = [block_id for block_id, holders in engine.holders.items() if holders]
        extra = next(crowd, None)
        if extra is not None and held:
            more.hold(10_000, held[extra[1] % len(held)])
        for block_id, holders in more.holders.items():
            if not engine.holders.get(block_id):
                more.holders[block_id] = holders - {10_000}
        if step[0] == "tell":
            assert feed.take(engine.frame()) == fuller.take(more.frame())
            assert feed.pictures() == fuller.pictures()


def test_events_name_no_request_of_others() -> None:
    feed = Feed(None, "ann")
    feed.take(whole(NUM_BLOCKS))
    requests = [
        entered(5, "of-bob", "bob"),
        entered(6, "of-ann", "ann"),
        entered(7, "ann-2", "ann"),
    ]
    waits = event(Reason.WAITS_FOR_BLOCKS, 3, "of-bob")
    mine = event(Reason.PREEMPTED_FOR_BLOCKS, 9, "ann-2")
    taken = event(Reason.PREEMPTED_FOR_BLOCKS, 7, "of-bob")
    frame = LiveFrame(
        False,
        [],
        [],
        requests,
        [],
        [
            progress(5, event=taken),
            progress(6, event=waits),
            progress(7, event=event(Reason.MISS_SALT, 48)),
        ],
        0,
    )
    preempted = [
        PreemptedRequest(id, each)
        for id, each in (("of-bob", mine), ("of-ann", mine), ("ann-2", taken))
    ]
    all_, own = feed.take(frame, *preempted)
    assert [each.id for each in all_.entered] == ["of-bob", "of-ann", "ann-2"]
    assert [each.why.other for each in all_.preempted] == ["ann-2", "ann-2", "of-bob"]
    assert [(each.n, each.id) for each in own.entered] == [(0, "of-ann"), (1, "ann-2")]
    whys = [each.why for each in own.progress]
    assert [(why.event, why.number, why.other) for why in whys if why is not None] == [
        ("waits_for_blocks", 3, ANOTHER),
        ("miss_new", 0, ""),
    ]
    assert [(each.n, each.why.other) for each in own.preempted] == [(0, "ann-2"), (1, ANOTHER)]


def test_ages_count_from_the_last_change() -> None:
    feed = Feed(None)
    feed.take(whole(NUM_BLOCKS))
    feed.take(LiveFrame(False, [2, 3, 2], [], [], [], [], 0))
    feed.now += 4
    (picture,) = feed.pictures()
    assert picture.ages == [2, -1, 3, 4, 4, -1]
    assert picture.runs == [0, 1, 0, 1, 1, 1, 2, 3, 2, 5, 4, 1]


def test_targets_and_the_pace_are_told_without_the_requests_of_others() -> None:
    feed = Feed(None, "ann")
    feed.take(whole(NUM_BLOCKS))
    requests = [
        entered(5, "of-bob", "bob")._replace(target_itl_s=0.05),
        entered(6, "of-ann", "ann")._replace(target_ttft_s=1.0),
    ]
    paced = event(Reason.PACED, 64, "of-bob")
    told = [
        progress(5)._replace(times=TokenTimes(0.25, 0.061, 2), event=event(Reason.FIRST_TOKEN)),
        progress(6, num_outputs=0, event=paced)._replace(times=TokenTimes(None, None, 0)),
    ]
    frame = LiveFrame(False, [], [], requests, [], told, 0, LivePace(64, "of-bob", 0.048, 0.04))
    all_, own = feed.take(frame)
    assert (all_.entered[0].target_itl_ms, own.entered[0].target_ttft_ms) == (50, 1000)
    assert [each.times for each in all_.progress] == [
        RequestTimes(250, 61, 2),
        RequestTimes(None, None, 0),
    ]
    (held,) = (each.why for each in own.progress)
    assert held is not None
    assert held.text == (
        "Computed in parts: prompts get 64 tokens of a step, so that another tenant keeps its "
        "target."
    )
    for changes, picture, late in zip(
        (all_, own), feed.pictures(), map(feed.late, (None, "ann")), strict=True
    ):
        assert changes.figures == picture.figures == late.figures
    pace, hidden = all_.figures.pace, own.figures.pace
    assert pace is not UNSET and hidden is not UNSET
    assert (pace.prompt_tokens, pace.other, pace.predicted_ms) == (64, "of-bob", 48)
    assert pace.text == "Prompts get 64 tokens of a step, so that of-bob keeps its target of 50 ms."
    assert hidden.other == ANOTHER and "bob" not in hidden.text and "50" not in hidden.text
    (rest, _) = feed.take(LiveFrame(False, [], [], [], [5, 6], [], 0))
    assert rest.figures.pace is UNSET
