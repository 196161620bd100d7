"""Makes one attack on one server, and measures what it did to the others."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from tests.e2e.hostile.target import ATTACKER_KEY, OTHER_KEY, Attack, Target
from tests.e2e.hostile.watch import Watch, watching
from tests.e2e.server_process import ServerProcess, server_process

LIMIT_HOLD_S = 0.02
LIMIT_LIVEZ_S = 0.25
LIMIT_KEPT_MB = 50.0
LIMIT_SLOWER = 2.0
LEAST_S = 1.0
"""A shorter attack is watched for so long all the same: the tokens of others take time to tell."""
MB = 1_000_000
KV_BYTES = "48MiB"
SERVER_FLAGS = (
    *("--api-key", ATTACKER_KEY, "--api-key", OTHER_KEY),
    *("--scheduling-policy", "fair", "--kv-cache-memory-bytes", KV_BYTES),
)
"""Two tenants who share fairly; KV memory so small that all of it has been touched before an attack
begins, so that what grows is something else."""
LAG_BUCKETS = "quire:event_loop_lag_seconds_bucket"
LONGEST_HOLD = "quire:event_loop_longest_hold_seconds"


class Hold(NamedTuple):
    """The longest hold of the event loop, in seconds; with `is_bound` an upper bound of it."""

    seconds: float
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effects of an attack: times in seconds, memory in MB above what it was before.
    `livez_own_s` is the longest answer less the time that it waited for a core; `kept_mb` is what
    was left when the time to give it back was over; `calm_gap_s` is the mean time between two
    tokens of the other user's stream before the attack, `gap_s` during it."""

    attack: Attack
    seconds: float
    answers: Counter[str]
    figures: dict[str, float]
    livez_s: float
    livez_own_s: float
    num_livez_failed: int
    hold: Hold
    peak_mb: float
    kept_mb: float
    calm_gap_s: float
    gap_s: float
    longest_gap_s: float
    num_streams_failed: int
    survived: bool

    @property
    def breaches(self) -> list[str]:
        """The aims that were missed, in a word each."""
        missed = {
            "answers": bool(self.attack.surprises(self.answers)),
            "died": not self.survived and not self.attack.ends_engine,
            "hold": self.hold.seconds > LIMIT_HOLD_S,
            "livez": self.livez_own_s > LIMIT_LIVEZ_S,
            "memory": self.kept_mb > LIMIT_KEPT_MB,
            "tokens": self.gap_s > LIMIT_SLOWER * self.calm_gap_s and not self.attack.stops_engine,
        }
        return [aim for aim, is_missed in missed.items() if is_missed]


class Arena:
    """A running server with its watches; `is_fit` says whether another attack may be made on it."""

    def __init__(self, server: ServerProcess, livez: Watch, stream: Watch) -> None:
        self._server = server
        self._livez = livez
        self._stream = stream
        self.is_fit = True

    def undergo(
        self, attack: Attack, *, calm_s: float, settle_s: float, settled_mb: float = LIMIT_KEPT_MB
    ) -> Outcome:
        """Watch for `calm_s`, attack, and wait up to `settle_s` for all memory but `settled_mb` to
        come back: the arena is fit for no other attack before."""
        target = target_of(self._server, attack.limit_s)
        self._livez.seen()
        self._stream.seen()
        time.sleep(calm_s)
        before, calm = self._livez.seen(), self._stream.seen()
        lags_before = loop_lags(self._server)
        began_s = time.monotonic()
        target.deadline_s = began_s + attack.limit_s
        attack.run(target)
        seconds = time.monotonic() - began_s
        time.sleep(max(LEAST_S - seconds, 0))
        seen, stream = self._livez.seen(), self._stream.seen()
        hold = longest_hold(lags_before, loop_lags(self._server))
        kept, peak = self._settle(
            before["memory"], seen["memory_peak"], time.monotonic() + settle_s, settled_mb * MB
        )
        self.is_fit = self._is_ready() and kept <= settled_mb * MB and not attack.ends_engine
        return Outcome(
            attack=attack,
            seconds=seconds,
            answers=target.answers,
            figures=target.figures,
            livez_s=seen["longest_s"],
            livez_own_s=seen["longest_own_s"],
            num_livez_failed=int(seen["num_failed"]),
            hold=hold,
            peak_mb=(peak - before["memory"]) / MB,
            kept_mb=kept / MB,
            calm_gap_s=calm["mean_s"],
            gap_s=stream["mean_s"],
            longest_gap_s=stream["longest_s"],
            num_streams_failed=int(stream["num_failed"]),
            survived=self._is_ready(),
        )

    def _settle(
        self, before: float, peak: float, until_s: float, settled: float
    ) -> tuple[float, float]:
        """Return the memory that is kept above `before`, once it is no more than `settled` or the
        time is over, and the peak until then."""
        while True:
            seen = self._livez.seen()
            kept, peak = seen["memory"] - before, max(peak, seen["memory_peak"])
            if kept <= settled or time.monotonic() > until_s:
                return kept, peak
            time.sleep(1)

    def _is_ready(self) -> bool:
        try:
            return self._server.client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def arena(*flags: str) -> Iterator[Arena]:
    with ExitStack() as stack:
        server = stack.enter_context(server_process(*SERVER_FLAGS, *flags))
        warm_up(server)
        target = target_of(server, 0)
        livez = stack.enter_context(watching("livez", target))
        stream = stack.enter_context(watching("stream", target))
        time.sleep(1)
        yield Arena(server, livez, stream)


def target_of(server: ServerProcess, limit_s: float) -> Target:
    url = httpx.URL(server.url)
    assert url.port is not None
    engine_pid = server.engine_process().pid
    deadline_s = time.monotonic() + limit_s
    return Target(url.host, url.port, server.process.pid, engine_pid, deadline_s)


def warm_up(server: ServerProcess) -> None:
    """Touch all KV memory, and each of the ways that a request can go."""
    headers = {"Authorization": f"Bearer {OTHER_KEY}"}
    prompts = [[300 + (index + place * 7) % 1000 for place in range(1000)] for index in range(20)]
    for path, body in (
        ("/v1/completions", {"prompt": prompts, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "x", "n": 64, "max_tokens": 8, "logprobs": 5}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/tokenize", {"prompt": "x y z " * 1000}),
    ):
        server.client.post(path, json=body, headers=headers).raise_for_status()


class LoopLags(NamedTuple):
    """Lags of the event loop as metrics tell them: `counts` are the numbers of lags up to each of
    the `bounds`, `longest_s` is the longest hold of the last minute."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    longest_s: float


def loop_lags(server: ServerProcess) -> LoopLags:
    lines = server.client.get("/metrics", timeout=150).text.splitlines()
    lags = [line for line in lines if line.startswith(LAG_BUCKETS)]
    (longest,) = [line for line in lines if line.startswith(LONGEST_HOLD)]
    return LoopLags(
        tuple(float(_between(line, 'le="', '"')) for line in lags),
        tuple(map(_value, lags)),
        _value(longest),
    )


def longest_hold(before: LoopLags, after: LoopLags) -> Hold:
    """Return the longest hold between the two: the longest of the last minute where that is a new
    one. Otherwise the answer is a bound: no hold was longer than that, nor than the bound of the
    highest bucket that has a lag since."""
    if after.longest_s > before.longest_s:
        return Hold(after.longest_s)
    grown = [now - then for now, then in zip(after.counts, before.counts, strict=True)]
    below = [0.0, *grown[:-1]]
    bounds = [
        bound for bound, num, less in zip(before.bounds, grown, below, strict=True) if num > less
    ]
    return Hold(min([after.longest_s, *bounds[-1:]]), is_bound=True)


def _value(line: str) -> float:
    return float(line.rsplit(" ", 1)[1])


def _between(text: str, opening: str, closing: str) -> str:
    return text.split(opening, 1)[1].split(closing, 1)[0]
