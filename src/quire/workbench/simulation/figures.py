"""The figures of a simulated or recorded run: percentiles of times, goodput, what it cost."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from quire.scheduler.step import Stats
from quire.workbench.simulation.simulation import SimulationResult
from quire.workbench.simulation.virtual.clients import SimulatedAnswer


class Objective(msgspec.Struct, frozen=True):
    """A service-level objective: the most milliseconds to the first token, between two tokens of
    one answer in the mean, and until the end. None is no bound. It is kept where at least `share`
    of all requests are within all of them."""

    first_token_ms: float | None = None
    inter_token_ms: float | None = None
    end_to_end_ms: float | None = None
    share: float = 0.99

    @property
    def is_given(self) -> bool:
        """Whether it bounds anything."""
        return (self.first_token_ms, self.inter_token_ms, self.end_to_end_ms) != (None, None, None)

    def is_met(self, answer: SimulatedAnswer) -> bool:
        """Return whether a request that was sent is within it; a refused one never is."""
        if answer.is_refused or answer.first_s is None:
            return False
        times_s = (
            (self.first_token_ms, answer.first_s - answer.sent_s),
            (self.inter_token_ms, answer.inter_token_s or 0.0),
            (self.end_to_end_ms, answer.last_s - answer.sent_s),
        )
        return all(most_ms is None or 1e3 * seconds <= most_ms for most_ms, seconds in times_s)


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of times, in milliseconds; None where nothing was timed."""

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


NOTHING_TIMED = Spread(None, None, None)


class SimFigures(msgspec.Struct, frozen=True):
    """The figures of one run. Goodput is the requests within the objective by the second, None
    without one; rates are over the time from the first request sent to the last answer's end.
    Engines have sent each other `sent_gb` (1e9 bytes) of keys and values, `sending` from the end of
    a prompt until they had arrived; `num_declined` prompts were computed again instead.
    With recurrent layers, `kv_hit_rate` is the share of prompt tokens of which the keys and values
    were in the prefix cache, whether or not there was a snapshot of the states to go on from;
    `num_without_state` requests would have found more with one. None without such layers.
    Of sessions, the times to the first token of their first turns and of later ones; what
    `num_turns_kept` turns found was kept for them, and `num_held` requests waited rather than take
    such blocks.
    """

    num_requests: int
    num_refused: int
    seconds: float
    first_token: Spread
    inter_token: Spread
    end_to_end: Spread
    output_tok_s: float
    good_share: float | None
    goodput_req_s: float | None
    num_preemptions: int
    hit_rate: float
    num_steps: int
    mean_running: float
    sent_gb: float = 0.0
    num_declined: int = 0
    sending: Spread = NOTHING_TIMED
    kv_hit_rate: float | None = None
    num_without_state: int = 0
    first_turns: Spread = NOTHING_TIMED
    later_turns: Spread = NOTHING_TIMED
    num_turns_kept: int = 0
    num_held: int = 0


def spread_of(seconds: Sequence[float]) -> Spread:
    """Return the percentiles of seconds, interpolated between the nearest ranks."""
    if not len(seconds):
        return NOTHING_TIMED
    found = np.percentile(np.asarray(seconds), (50, 90, 99))
    return Spread(*(round(1e3 * float(each), 4) for each in found))


def figures_of(simulated: SimulationResult, objective: Objective) -> SimFigures:
    """Return the figures of a simulation."""
    clients, stats = simulated.clients, simulated.stats
    answers = clients.answers
    served = [each for each in answers if each.first_s is not None]
    first_s = min((each.sent_s for each in answers), default=0.0)
    seconds = max((each.last_s for each in answers), default=first_s) - first_s
    num_outputs = sum(each.num_output_tokens for each in answers)
    good = sum(map(objective.is_met, answers)) if objective.is_given else None
    return SimFigures(
        num_requests=len(answers),
        num_refused=sum(each.is_refused for each in answers),
        seconds=round(seconds, 6),
        first_token=_first_tokens(served),
        inter_token=spread_of(clients.gaps_s),
        end_to_end=spread_of([each.last_s - each.sent_s for each in served]),
        output_tok_s=_ratio(num_outputs, seconds),
        good_share=None if good is None else _ratio(good, len(answers)),
        goodput_req_s=None if good is None else _ratio(good, seconds),
        num_preemptions=stats.num_preemptions,
        hit_rate=_hit_rate(stats),
        num_steps=simulated.num_steps,
        mean_running=_ratio(num_outputs, simulated.num_steps),
        sent_gb=round(1e-9 * simulated.sent.num_bytes, 3),
        num_declined=simulated.sent.num_declined,
        sending=spread_of(simulated.sent.seconds),
        kv_hit_rate=_kv_hit_rate(stats),
        num_without_state=stats.num_misses_without_state,
        first_turns=_first_tokens(each for each in served if _is_first(each)),
        later_turns=_first_tokens(each for each in served if each.request.before),
        num_turns_kept=stats.num_turns_kept,
        num_held=stats.num_held_for_sessions,
    )


def _first_tokens(answers: Iterable[SimulatedAnswer]) -> Spread:
    return spread_of([(each.first_s or 0.0) - each.sent_s for each in answers])


def _is_first(answer: SimulatedAnswer) -> bool:
    return answer.request.is_turn and not answer.request.before


def _hit_rate(stats: Stats) -> float:
    """Return the share of prompt tokens that were found in the prefix cache."""
    return _ratio(stats.num_prefix_hits, stats.num_prefix_queries)


def _kv_hit_rate(stats: Stats) -> float | None:
    """Return the share of prompt tokens whose K and V were found, None without states."""
    if not any(stats.states_by_use.values()):
        return None
    return _ratio(stats.num_prefix_hits + stats.num_tokens_without_state, stats.num_prefix_queries)


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole > 0 else 0.0
