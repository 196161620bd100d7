"""A recorded scheduler that is short of everything: requests are swapped and preempted, wait for
prefixes that others compute, and are admitted before a head that lacks blocks. Some are turns of
sessions.
"""

import random
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace

import msgspec

from quire.cache.block_copies import CopyKind, CopyTime
from quire.cache.block_hash import BlockHash
from quire.cache.config import CacheConfig
from quire.cache.snapshot.digest_numbers import DigestNumbers, digest_of
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.engine.recording.inputs import Record
from quire.engine.recording.replayed_scheduler import SegmentStart, restored, shape_of
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.snapshot.arrival import TenantNumbers
from quire.scheduler.snapshot.scheduler_snapshot import (
    SchedulerSnapshot,
    can_snapshot,
    snapshot_scheduler,
)
from quire.scheduler.step import Step, StepResult
from quire.workbench.simulation.replay import replay
from tests.engine.recording.recorded import Recorded

DECODER = msgspec.msgpack.Decoder[Record](Record)
STEP_S = 0.05
SEGMENT_S = 0.5
NUM_BETWEEN_REPLAYS = 60
"""So many steps are in the ring whole, whatever their segments."""
WINDOW = AttentionPattern(AttentionType.SLIDING, 6)
EOS = 5


def pressed_configs(chance: random.Random) -> tuple[SchedulerConfig, CacheConfig]:
    """Return configurations of too few blocks."""
    scheduler = SchedulerConfig(
        max_num_seqs=6,
        max_num_batched_tokens=chance.choice([12, 24]),
        max_model_len=48,
        max_num_queued_reqs=24,
        watermark=chance.choice([0.0, 0.05]),
        max_skips=chance.choice([1, 3]),
        preemption_mode=chance.choice([PreemptionMode.SWAP, PreemptionMode.AUTO]),
    )
    cache = CacheConfig(
        num_blocks=chance.choice([40, 60]),
        block_size=chance.choice([2, 4]),
        groups=chance.choice([(FULL,), (FULL, WINDOW)]),
        max_chunk_tokens=24,
        num_host_blocks=chance.choice([12, 60]),
        num_states=chance.choice([0, 8, 12]),
    )
    if cache.num_states:
        cache = replace(cache, num_host_states=chance.choice([4, 12]))
    return scheduler, cache


@dataclass
class Pressed:
    """Runs steps; `seen` counts the snapshots that had what a restore must not lose."""

    chance: random.Random
    recorded: Recorded
    config: SchedulerConfig
    cache: CacheConfig
    now: float = 100.0
    num_added: int = 0
    steps: list[Step] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    live: dict[str, NewRequest] = field(default_factory=dict)
    texts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)

    def step(self) -> None:
        """Let some arrive, schedule a step, and take in a result."""
        scheduler, chance = self.recorded.scheduler, self.chance
        for _ in range(chance.choice([0, 0, 1, 1, 3])):
            new = self.next_turn() if self.over and chance.random() < 0.4 else self.new()
            if scheduler.add(new, self.now) is None:
                self.live[new.id], self.texts[new.id] = new, new.prompt_token_ids
        self.steps.append(scheduler.schedule(self.now))
        late = chance.random() < 0.7
        while len(self.steps) > late:
            self.now += STEP_S * (0.5 + chance.random())
            step = self.steps.pop(0)
            deltas = scheduler.update(step, self.result(step), self.now)
            for delta in deltas:
                self.texts[delta.request_id] += delta.token_ids
                if delta.finish is not None:
                    self.over.append(delta.request_id)
                    if chance.random() < 0.7:
                        calls_tools = chance.random() < 0.6
                        scheduler.note_turn(delta.request_id, self.now, calls_tools=calls_tools)

    def next_turn(self) -> NewRequest:
        """Return the next turn of a session, which has a little more, or another beginning."""
        chance = self.chance
        self.num_added += 1
        last = self.live[self.over.pop(chance.randrange(len(self.over)))]
        text = self.texts[last.id] if chance.random() < 0.8 else last.prompt_token_ids[:-2]
        more = tuple(chance.randrange(10, 90) for _ in range(chance.choice([1, 5])))
        prompt = (text + more)[:30]
        name = chance.choice([last.session, "mine"])
        asked_s = chance.choice([None, 0.5, 60.0])
        stopping = Stopping(chance.choice([1, 6]), 0, (EOS,), ())
        request_id = f"r{self.num_added}"
        return replace(
            last,
            id=request_id,
            prompt_token_ids=prompt,
            stopping=stopping,
            session=name,
            endpoint="chat",
            retention_s=asked_s,
        )

    def new(self) -> NewRequest:
        """Return a request; most begin as some others do."""
        chance = self.chance
        self.num_added += 1
        family, length = chance.randrange(6), chance.choice([2, 7, 12, 20])
        prompt = (100 + family,) * chance.choice([8, 16])
        tail = tuple(chance.randrange(10, 90) for _ in range(length))
        stopping = Stopping(chance.choice([1, 6, 20]), 0, (EOS,), ())
        tenant = chance.choice(["", "other"])
        return NewRequest(f"r{self.num_added}", prompt + tail, Sampling(), stopping, tenant=tenant)

    def result(self, step: Step) -> StepResult:
        kinds = Counter(copy.kind for copy in step.block_copies)
        num_copies = kinds[CopyKind.OUT] + kinds[CopyKind.IN]
        num_states = kinds[CopyKind.STATE_OUT] + kinds[CopyKind.STATE_IN]
        return StepResult(
            step.number,
            tuple(self.chance.randrange(5, 90) for each in step.chunks if each.samples),
            copy_time=CopyTime(
                num_copies,
                0.0003 * num_copies,
                0.0001 * num_copies,
                num_states,
                0.0002 * num_states,
            ),
        )

    def check_snapshot(self) -> None:
        """Hold that a restored scheduler has the same snapshot."""
        scheduler, recorder = self.recorded.scheduler, self.recorded.recorder
        if not can_snapshot(scheduler):
            return
        snapshot = snapshot_scheduler(scheduler, recorder.numbers, recorder.tenants)
        self.note(snapshot)
        start = SegmentStart(0.0, 0.0, self.config, shape_of(self.cache), snapshot, ())
        decoded = DECODER.decode(msgspec.msgpack.encode(start))
        assert isinstance(decoded, SegmentStart)
        numbers = DigestNumbers(BlockHash(), len(self.cache.groups))
        numbers.learn(map(digest_of, range(len(snapshot.cache.depths))))
        numbers.depths[:] = snapshot.cache.depths
        taken = snapshot_scheduler(restored(decoded).scheduler, numbers, TenantNumbers())
        assert msgspec.to_builtins(taken) == msgspec.to_builtins(snapshot)

    def note(self, snapshot: SchedulerSnapshot) -> None:
        """Count what is in a snapshot."""
        requests, host = snapshot.requests, snapshot.cache.host
        swaps = [each.table.swap for each in requests if each.table.swap is not None]
        self.seen["swapped"] += bool(swaps)
        self.seen["private"] += any(each.private for each in swaps)
        self.seen["retained"] += any(each.retained for each in swaps)
        states = snapshot.cache.states
        self.seen["states"] += any(each.state_id is not None for each in swaps)
        self.seen["states on host"] += states is not None and bool(states.host.cached)
        self.seen["on host"] += host is not None and bool(host.cached)
        self.seen["preempted"] += any(each.num_preemptions for each in requests)
        self.seen["skipped"] += any(each.num_skips for each in requests)
        self.seen["awaited"] += bool(snapshot.waits.awaited)
        self.seen["computing"] += bool(snapshot.waits.computing)
        self.seen["not calm"] += snapshot.number < snapshot.calm_at
        self.seen["recent"] += bool(snapshot.recent)
        self.seen["idle sessions"] += any(
            each.ended_s is not None for each in snapshot.sessions.sessions
        )
        self.seen["turns"] += any(each.request_ids for each in snapshot.sessions.sessions)
        self.seen["unsaid"] += bool(snapshot.sessions.unsaid)
        self.seen["gaps"] += bool(snapshot.sessions.gaps)
        self.seen["expected"] += any(each.rank == 2 for each in snapshot.cache.kept)
        self.seen["asked"] += any(each.rank == 1 for each in snapshot.cache.kept)
        self.seen["ranked"] += any(map(bool, snapshot.cache.pool.ranked))
        self.seen["held"] += snapshot.sessions.held_since_s is not None


STATES = (
    *("swapped", "private", "retained", "on host", "preempted", "skipped", "awaited"),
    *("computing", "not calm", "recent", "states", "states on host"),
    *("idle sessions", "turns", "unsaid", "gaps", "expected", "asked", "ranked", "held"),
)


def replay_pressed(seed: int, num_steps: int) -> Counter[str]:
    """Run steps; hold that each part of the record is replayed to the same decisions. `forgotten`
    counts the segments that began with fewer digests than were known."""
    chance = random.Random(seed)
    config, cache = pressed_configs(chance)
    with closing(Recorded(config, cache, SEGMENT_S)) as recorded:
        pressed = Pressed(chance, recorded, config, cache)
        for number in range(1, num_steps + 1):
            num_digests = len(recorded.recorder.numbers)
            pressed.step()
            pressed.seen["forgotten"] += len(recorded.recorder.numbers) < num_digests
            if number % NUM_BETWEEN_REPLAYS == 0:
                replayed = replay(recorded.segments)
                assert replayed.difference == "", f"seed {seed}, step {number}"
                assert len(replayed.starts) > 2 and not recorded.recorder.is_broken
                recorded.cache.check()
    return pressed.seen


def snapshot_pressed(seed: int, num_steps: int) -> Counter[str]:
    """Run steps; hold that the snapshot before each is that of the scheduler restored from it."""
    chance = random.Random(seed)
    config, cache = pressed_configs(chance)
    with closing(Recorded(config, cache)) as recorded:
        pressed = Pressed(chance, recorded, config, cache)
        for _ in range(num_steps):
            pressed.step()
            pressed.check_snapshot()
    return pressed.seen
