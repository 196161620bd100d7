"""Latency targets in words: those of a request, and how many tokens of all came in time."""

from collections import deque
from dataclasses import dataclass, field

from quire.workbench.terminal.live_events import (
    ShownPace,
    ShownProgress,
    ShownRequest,
    TokensInTime,
)
from quire.workbench.terminal.visible_text import on_one_line

RECENT_S = 60.0
MAX_PACE_CHARS = 160
_NONE = TokensInTime()


@dataclass(slots=True)
class TargetHistory:
    """The counts of tokens in time and late, with the Unix seconds at which each was told: those of
    the last minute, and the newest before it."""

    _counts: deque[tuple[float, TokensInTime]] = field(default_factory=deque)

    def add(self, now_s: float, counts: TokensInTime | None) -> None:
        """Take in the counts of an event; None where no request has had a target."""
        self._counts.append((now_s, counts or _NONE))
        while len(self._counts) > 1 and self._counts[1][0] <= now_s - RECENT_S:
            self._counts.popleft()

    def clear(self) -> None:
        """Forget all counts."""
        self._counts.clear()

    def words(self) -> str:
        """Return the shares of tokens in time, lately and in all; empty where there are none."""
        if not self._counts:
            return ""
        (then_s, before), (now_s, now) = self._counts[0], self._counts[-1]
        seconds = max(now_s - then_s, 1.0)
        told = (
            _in_time("first tokens", seconds, before.of_first_tokens, now.of_first_tokens),
            _in_time("later tokens", seconds, before.of_later_tokens, now.of_later_tokens),
        )
        return "  ".join(filter(None, told))


def _in_time(name: str, seconds: float, before: tuple[int, int], now: tuple[int, int]) -> str:
    met, missed = now
    if not met + missed:
        return ""
    lately_met, lately_missed = met - before[0], missed - before[1]
    lately = ""
    if lately_met >= 0 and lately_missed >= 0 and lately_met + lately_missed:
        lately = f"{_share(lately_met, lately_missed)} in {seconds:.0f} s, "
    return f"{name} in time: {lately}{_share(met, missed)} in all"


def _share(num_met: int, num_missed: int) -> str:
    return f"{num_met / (num_met + num_missed):.1%} of {num_met + num_missed}"


def pace_words(pace: ShownPace) -> str:
    """Return the pace of steps: the part that prompts get, and the expected time."""
    words = on_one_line(pace.text, MAX_PACE_CHARS)
    if pace.predicted_ms is None:
        return words
    return f"{words} Expected step {pace.predicted_ms:.1f} ms, wrong by {pace.error:.0%}."


def request_words(request: ShownRequest, progress: ShownProgress, now_s: float) -> tuple[str, bool]:
    """Return what came of a request's targets, empty where it has none, and whether any token was
    late. `now_s` is in Unix seconds."""
    times, words, is_late = progress.times, [], False
    ttft_ms = None if times is None else times.ttft_ms
    itl_ms = None if times is None else times.itl_ms
    if request.target_ttft_ms is not None:
        waited_ms = max(1000 * (now_s - request.arrived), 0.0) if ttft_ms is None else ttft_ms
        is_late |= waited_ms > request.target_ttft_ms
        name = "no token for" if ttft_ms is None else "first token"
        words.append(f"{name} {waited_ms:.0f} of {request.target_ttft_ms:g} ms")
    if request.target_itl_ms is not None:
        last = "within" if itl_ms is None else f"{itl_ms:.0f} of"
        words.append(f"later {last} {request.target_itl_ms:g} ms")
        if times is not None and times.late:
            is_late = True
            words.append(f"{times.late} late")
    return ", ".join(words), is_late
