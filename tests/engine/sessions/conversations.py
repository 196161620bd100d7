"""Conversations with a toy engine, whose turns go on from what was said before, and what must hold
of them whoever else comes."""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Stopping
from tests.engine.invariants import (
    COMMON,
    OFTEN,
    SAMPLINGS,
    TOKENS,
    arrivals,
    bursts,
    check_world,
    pooled_arrivals,
    step_times,
)
from tests.engine.toy_engine import MAX_MODEL_LEN, Arrival, Shape, World
from tests.models.timed_model import StepTimes

STEPS_PER_TOKEN = 30
"""An engine with work takes fewer steps for each token of its requests."""
LONGEST_S = 1000.0
"""Nothing is kept longer: neither for a turn nor because a client asks for it."""

PAUSES_S = st.sampled_from([0.0, 0.0, 1 / 64, 1 / 4, 1.0, 4.0, 20.0, 400.0])
RETENTIONS_S = st.sampled_from([None, None, 1.0, 30.0, LONGEST_S])


@dataclass(frozen=True)
class NextTurn:
    """A turn behind the last one.

    new: its request, whose prompt is what comes behind the prompt before and its output; None where
        there is no turn, but something is said of the last one.
    pause_s: the seconds between the last end and it.
    calls_tools: what is said of the answer before it, None for nothing.
    said_after: the steps after which it is said.
    has_output: whether the output before is in the prompt.
    num_cut: the tokens that are cut from the end of the prompt before.
    aborts_after: the steps after which it is aborted, None for never.
    """

    new: NewRequest | None
    pause_s: float
    calls_tools: bool | None
    said_after: int = 0
    has_output: bool = True
    num_cut: int = 0
    aborts_after: int | None = None


@dataclass(frozen=True)
class Conversation:
    first: Arrival
    turns: tuple[NextTurn, ...] = ()


@dataclass(frozen=True)
class Load:
    """Conversations, and the steps before which the cache forgets everything."""

    conversations: tuple[Conversation, ...]
    resets: frozenset[int] = frozenset()


@st.composite
def next_turns(draw: st.DrawFn, before: NewRequest) -> NextTurn:
    """A turn behind a request, mostly of the same tenant, session and endpoint."""
    new = replace(
        before,
        prompt_token_ids=tuple(draw(st.lists(TOKENS, min_size=1, max_size=5))),
        sampling=draw(SAMPLINGS),
        stopping=Stopping(draw(st.integers(1, 8))),
        pooling=None,
        fork_of=None,
        tenant=draw(st.sampled_from([before.tenant] * 4 + ["a"])),
        session=draw(st.sampled_from([before.session] * 4 + ["", "s0"])),
        endpoint=draw(st.sampled_from([before.endpoint] * 4 + ["chat"])),
        priority=draw(st.integers(-2, 2)),
        time_limit_s=draw(st.sampled_from([None, None, None, 1.0, 20.0])),
        retention_s=draw(RETENTIONS_S),
    )
    return NextTurn(
        new,
        draw(PAUSES_S),
        draw(st.sampled_from([True, True, True, False, None])),
        draw(st.sampled_from([0, 0, 0, 1, 4])),
        draw(OFTEN),
        draw(st.sampled_from([0, 0, 0, 3])),
        draw(st.sampled_from([None, None, None, 0, 2, 6])),
    )


@st.composite
def agents(draw: st.DrawFn) -> Load:
    """Agents who call tools and come back soon, and a few who come anew, of tenants alike."""
    found = []
    for index in range(draw(st.integers(2, 7))):
        is_new = draw(st.sampled_from([False, False, True]))
        new = NewRequest(
            id=f"r{index}",
            prompt_token_ids=(*draw(st.lists(TOKENS, min_size=1, max_size=4)), *COMMON[:12]),
            sampling=draw(SAMPLINGS),
            stopping=Stopping(draw(st.sampled_from([1, 4, 12]))),
            tenant=draw(st.sampled_from(["a", "a", "b"])),
            endpoint="chat",
        )
        turns = [draw(next_turns(new)) for _ in range(0 if is_new else draw(st.integers(1, 4)))]
        calm = [
            replace(
                turn,
                pause_s=draw(st.sampled_from([0.0, 1 / 64, 1 / 4, 1.0])),
                calls_tools=True,
                aborts_after=None,
            )
            for turn in turns
        ]
        found.append(Conversation(Arrival(new, draw(st.integers(0, 12))), tuple(calm)))
    return Load(tuple(found))


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Requests of all kinds, of which most begin a conversation."""
    found = []
    for arrival in draw(st.one_of(arrivals(), bursts(), pooled_arrivals())):
        new = replace(
            arrival.new,
            session=draw(st.sampled_from(["", "", "s0", "s1"])),
            endpoint=draw(st.sampled_from(["chat", "messages"])),
            retention_s=draw(RETENTIONS_S),
        )
        turns: list[NextTurn] = []
        before = new
        for _ in range(draw(st.integers(0, 4))):
            turns.append(draw(next_turns(before)))
            before = turns[-1].new or before
        if draw(st.booleans()):
            turns.append(NextTurn(None, 0.0, draw(st.booleans())))
        abort_step = draw(st.sampled_from([None, None, arrival.abort_step]))
        first = replace(arrival, new=new, abort_step=abort_step)
        found.append(Conversation(first, tuple(turns)))
    resets = draw(st.just(frozenset[int]()) | st.frozensets(st.integers(0, 40), max_size=2))
    return Load(tuple(found), resets)


slow_steps = st.sampled_from([StepTimes(1 / 2, 0.0), StepTimes(1 / 4, 1 / 256)])
"""Steps that let time pass in which requests wait."""


@st.composite
def keeping_shapes(draw: st.DrawFn, shapes: st.SearchStrategy[Shape]) -> Shape:
    """Shapes that cache prefixes, most of which keep sessions, and half of which have little room
    for those."""
    shape = draw(shapes)
    if draw(st.booleans()):
        shape = replace(
            shape,
            block_size=draw(st.integers(1, 3)),
            num_blocks=draw(st.integers(30, 80)),
            max_num_seqs=draw(st.integers(2, 4)),
            max_num_batched_tokens=max(shape.max_num_batched_tokens, 4),
        )
    return replace(
        shape,
        caches_prefixes=True,
        keep_sessions=draw(st.sampled_from([True] * 5 + [False])),
        times=draw(st.one_of(step_times, slow_steps, st.none())),
    )


@dataclass
class Talk:
    """A world in which conversations go on: the requests that came, and the number of the step."""

    world: World
    load: Load
    arrivals: list[Arrival] = field(default_factory=list)
    step: int = 0
    _ongoing: list["Ongoing"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ongoing = [Ongoing(self, each) for each in self.load.conversations]

    def go_on(self) -> bool:
        """Take a step; return False instead once all conversations are over."""
        if self.step in self.load.resets:
            self.world.reset_prefix_cache()
        for each in self._ongoing:
            each.go_on()
        dues = [due for each in self._ongoing if (due := each.due_s) is not None]
        if not self.world.has_work and all(each.has_begun for each in self._ongoing):
            if not dues:
                return False
            self.world.idle_until(min(dues))
        self.world.step()
        self.step += 1
        return True

    def add(self, new: NewRequest, aborts_after: int | None) -> Arrival:
        abort_step = None if aborts_after is None else self.step + aborts_after
        self.arrivals.append(Arrival(new, self.step, abort_step))
        self.world.add(new)
        return self.arrivals[-1]


@dataclass
class Ongoing:
    """A conversation, the latest of its requests, and since when that has ended."""

    talk: Talk
    conversation: Conversation
    latest: Arrival | None = None
    num_turns: int = 0
    ended_s: float | None = None
    ended_step: int = 0
    has_said: bool = False

    @property
    def has_begun(self) -> bool:
        return self.latest is not None

    @property
    def due_s(self) -> float | None:
        """The time of the next turn, None while it is not known or if there is none."""
        turns = self.conversation.turns
        if self.ended_s is None or self.num_turns == len(turns):
            return None
        return self.ended_s + turns[self.num_turns].pause_s

    def go_on(self) -> None:
        talk, first = self.talk, self.conversation.first
        if self.latest is None:
            if first.step == talk.step:
                after = None if first.abort_step is None else first.abort_step - first.step
                self.latest = talk.add(first.new, after)
            return
        if self.latest.abort_step is not None and self.latest.abort_step <= talk.step:
            talk.world.abort(self.latest.new.id)
        deltas = talk.world.deltas.get(self.latest.new.id)
        if self.ended_s is None and deltas and deltas[-1].finish is not None:
            self.ended_s, self.ended_step, self.has_said = talk.world.now, talk.step, False
        due_s = self.due_s
        if due_s is None:
            return
        turn = self.conversation.turns[self.num_turns]
        is_said = self.has_said or talk.step < self.ended_step + turn.said_after
        if turn.calls_tools is not None and not is_said:
            talk.world.note_turn(self.latest.new.id, calls_tools=turn.calls_tools)
            self.has_said = True
        if talk.world.now >= due_s:
            self._begin(turn, self.latest.new)

    def _begin(self, turn: NextTurn, before: NewRequest) -> None:
        self.num_turns += 1
        if turn.new is None:
            return
        prompt = before.prompt_token_ids
        prompt = prompt[: max(len(prompt) - turn.num_cut, 1)]
        if turn.has_output:
            prompt += self.talk.world.tokens_of(before.id)
        prompt += turn.new.prompt_token_ids
        if len(prompt) + turn.new.stopping.max_tokens > MAX_MODEL_LEN:
            self.num_turns = len(self.conversation.turns)
            return
        name = f"{self.conversation.first.new.id}.{self.num_turns}"
        new = replace(turn.new, id=name, prompt_token_ids=prompt)
        self.latest, self.ended_s = self.talk.add(new, turn.aborts_after), None


def check_load(shape: Shape, load: Load) -> World:
    """Each turn has the text that it would have alone, whatever is kept for whom; all end, and once
    their time is over nothing is kept any more. Return the world in which they ended."""
    talk = Talk(World(shape), load)
    while talk.go_on():
        sizes = [len(e.new.prompt_token_ids) + e.new.stopping.max_tokens for e in talk.arrivals]
        assert talk.step <= 100 + STEPS_PER_TOKEN * sum(sizes), "not done"
    world = talk.world
    check_world(world, shape, talk.arrivals)
    check_turns(world, {each.new.id: each.new for each in talk.arrivals})
    if not shape.keep_sessions:
        assert world.scheduler.stats.num_turns == world.scheduler.stats.num_blocks_kept == 0
    world.idle_until(world.now + 2 * LONGEST_S)
    world.step()
    assert world.scheduler.stats.num_blocks_kept == 0, "nothing is kept after its time"
    return world


def check_turns(world: World, news: dict[str, NewRequest]) -> None:
    """A turn goes on from one of its tenant that had ended when it came. Who waits for sessions is
    counted once."""
    num_held = 0
    for name, deltas in world.deltas.items():
        timeline = deltas[-1].finish.timeline if deltas and deltas[-1].finish else ()
        num_held += any(each.reason is Reason.WAITS_FOR_SESSIONS for each in timeline)
        for event in timeline:
            if event.reason is Reason.NEXT_TURN:
                assert news[event.other].tenant == news[name].tenant
                before = world.deltas[event.other][-1].finish
                assert before is not None
                assert before.timeline[-1].time_s <= timeline[0].time_s
    assert num_held <= world.scheduler.stats.num_held_for_sessions <= len(world.deltas)
