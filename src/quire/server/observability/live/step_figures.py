"""Adds up what the steps between two events of the live view have done."""

from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from quire.engine.messages import EngineOutput
from quire.scheduler.reasons import PREEMPTIONS
from quire.scheduler.step import Stats
from quire.server.observability.live.live_view import PreemptedRequest
from quire.server.observability.live.wire import Figures, TargetFigures


class StepFigures:
    """The figures since `began_s`, in seconds of the server's clock, of an engine that had `stats`
    then."""

    def __init__(self, stats: Stats, began_s: float) -> None:
        self._began_s = began_s
        self._num_generated = stats.num_generation_tokens
        self._num_steps = 0
        self._step_s = 0.0
        self.preempted: list[PreemptedRequest] = []

    def add(self, output: EngineOutput) -> None:
        """Take in what one iteration of the engine has told."""
        if output.step:
            self._num_steps += 1
            self._step_s += output.step_s
        for request_id, event in output.events:
            if event.reason in PREEMPTIONS:
                self.preempted.append(PreemptedRequest(request_id, event))

    def figures(self, stats: Stats, num_unlisted: int, now: float) -> Figures:
        """Return the figures until `now`, when the engine has `stats`."""
        seconds, steps = max(now - self._began_s, 1e-3), self._num_steps
        num_generated = stats.num_generation_tokens - self._num_generated
        queries = stats.num_recent_queries
        return Figures(
            running=stats.num_running,
            waiting=stats.num_waiting,
            unlisted=num_unlisted,
            preemptions=stats.num_preemptions,
            seconds=round(seconds, 3),
            steps=steps,
            step_ms=round(1e3 * self._step_s / steps, 3) if steps else None,
            tokens_per_s=round(max(num_generated, 0) / seconds, 2),
            hit_rate=round(stats.num_recent_hits / queries, 4) if queries else None,
            blocks=stats.blocks_by_state,
            targets=_targets(stats),
        )


def _targets(stats: Stats) -> TargetFigures | UnsetType:
    """Return the counts of tokens with a target, unless there was none."""
    counts = TargetFigures(
        stats.num_ttft_met, stats.num_ttft_missed, stats.num_itl_met, stats.num_itl_missed
    )
    return counts if any(astuple(counts)) else UNSET
