"""Learns from the steps themselves how long a step of some work takes.

Seconds are linear in counts of the work, with coefficients of at least 0, fitted by least squares
of the relative error over recent steps: each step is a row of the counts over its seconds, which
should add up to 1.

    a decode step of 8 sequences      base + 8 x sequence + contexts x context token
    with a chunk of a prompt          ... + chunk x prompt token + pairs x pair
"""

from math import inf, sqrt
from typing import NamedTuple, TypeAlias

from quire.scheduler.pacing.step_work import StepWork

Row: TypeAlias = tuple[float, float, float, float, float]
"""The base, prompt tokens, decoding sequences, tokens of their contexts, pairs of prompts."""

DECAY = 0.98
"""The weight of older steps at each new one: some fifty count."""
REFIT_EVERY, REFIT_AFTER = 8, 32
"""So many steps are observed between two fits, where times are asked for and where not."""
LEAST_PROBE = 128
"""Tokens of a first chunk beside outputs, while nothing is known of what they cost."""
MAX_GROWTH = 2.0
"""A chunk beside outputs is at most so many times as large as the largest recent one."""
FORGETTING = 0.999
FIRM = 1e-9
"""The share of its own sum that each coefficient is held to zero by, so that the fit has one
solution."""
_BASE, _PROMPT, _SEQS, _CONTEXT, _PAIRS = range(5)


class StepParts(NamedTuple):
    """The expected seconds of a step: those that any step takes, and those of its work."""

    base_s: float
    work_s: float


class PromptTime(NamedTuple):
    """The seconds that a step has left for prompts, and what a token and a pair take."""

    left_s: float
    token_s: float
    pair_s: float

    def beside(self, num_tokens: int, pairs: int) -> "PromptTime":
        """Return the time that is left beside so many tokens of prompts, with so many pairs."""
        left_s = self.left_s - num_tokens * self.token_s - pairs * self.pair_s
        return self._replace(left_s=left_s)

    def most_tokens(self, context: int) -> float:
        """Return how many tokens of a prompt fit, of which `context` are computed."""
        if self.left_s <= 0:
            return 0.0
        token_s, pair_s = self.token_s + self.pair_s * context, self.pair_s / 2
        if pair_s > 0:
            return (sqrt(token_s**2 + 4 * pair_s * self.left_s) - token_s) / (2 * pair_s)
        return self.left_s / token_s if token_s > 0 else inf


def _row(work: StepWork) -> Row:
    return (
        1.0,
        float(work.num_prefill_tokens),
        float(work.num_decode_tokens),
        float(work.num_context_tokens),
        float(work.num_prefill_pairs),
    )


class LearnedStepTimes:
    """Predicts the seconds of steps, once some were observed. `predicted_s` are those that the
    last observed step was expected to take, None while nothing was known."""

    def __init__(self) -> None:
        self._products = [[0.0] * 5 for _ in range(5)]
        self._moments = [0.0] * 5
        self._coefficients: tuple[float, ...] = ()
        self._num_since = 0
        self._error = 0.0
        self.predicted_s: float | None = None
        self._most_prompt = 0.0

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step of some work that took `seconds`."""
        if seconds <= 0 or not work.num_tokens:
            return
        row = _row(work)
        if self._coefficients:
            predicted = self.predicted_s = sum(map(float.__mul__, self._coefficients, row))
            self._error += (abs(predicted / seconds - 1) - self._error) * (1 - DECAY)
        scale = 1 / seconds
        scaled = [each * scale for each in row]
        for index, (products, each) in enumerate(zip(self._products, scaled, strict=True)):
            self._products[index] = [
                DECAY * known + each * other for known, other in zip(products, scaled, strict=True)
            ]
        self._moments = [
            DECAY * known + each for known, each in zip(self._moments, scaled, strict=True)
        ]
        self._most_prompt = max(FORGETTING * self._most_prompt, row[_PROMPT])
        self._num_since += 1
        if self._num_since >= REFIT_AFTER:
            self._fitted()

    @property
    def error(self) -> float:
        """The mean share by which predictions of recent steps were wrong."""
        return self._error

    def seconds(self, work: StepWork) -> float | None:
        """Return the expected seconds of a step, None before any like it was observed."""
        parts = self.parts(work)
        return None if parts is None else parts.base_s + parts.work_s

    def parts(self, work: StepWork) -> StepParts | None:
        """Return the expected seconds of a step in two parts, None before any like it was
        observed."""
        row = _row(work)
        if any(row[index] > 0 and not self._is_seen(index) for index in (_PROMPT, _SEQS)):
            return None
        known = self._fitted()
        if not known:
            return None
        return StepParts(known[_BASE], sum(map(float.__mul__, known[1:], row[1:])))

    def prompt_time(self, work: StepWork, within_s: float) -> PromptTime | None:
        """Return the time that a step of some work, which should end within so many seconds, has
        for prompts beside that; None before any was observed."""
        known = self._fitted()
        if not known or not self._is_seen(_PROMPT):
            return None
        left_s = within_s - sum(map(float.__mul__, known, _row(work)))
        return PromptTime(left_s, known[_PROMPT], known[_PAIRS])

    def most_prompt_tokens(self, time: PromptTime | None, context: int) -> int:
        """Return how many tokens of a prompt, of which `context` are computed, a step may compute
        in this time; 0 where none is left."""
        if time is None:
            return LEAST_PROBE
        bound = max(MAX_GROWTH * self._most_prompt, LEAST_PROBE)
        return int(min(bound, time.most_tokens(context)))

    def _is_seen(self, index: int) -> bool:
        return self._products[index][index] > 0

    def _fitted(self) -> tuple[float, ...]:
        if self._num_since >= (REFIT_EVERY if self._coefficients else 1):
            self._coefficients = self._fit()
            self._num_since = 0
        return self._coefficients

    def _fit(self) -> tuple[float, ...]:
        """Return the coefficients, all at least 0: the most negative is left out until there is
        none."""
        used = [index for index in range(5) if self._products[index][index] > 0]
        while used:
            found = self._solve(used)
            least = min(range(len(used)), key=found.__getitem__)
            if found[least] >= 0:
                named = dict(zip(used, found, strict=True))
                return tuple(named.get(index, 0.0) for index in range(5))
            del used[least]
        return ()

    def _solve(self, used: list[int]) -> list[float]:
        """Return the least squares of these coefficients, by elimination (the matrix is positive
        definite)."""
        size = len(used)
        scales = [1 / sqrt(self._products[index][index]) for index in used]
        rows = [
            [
                self._products[one][other] * scales[i] * scales[j] + (FIRM if i == j else 0.0)
                for j, other in enumerate(used)
            ]
            + [self._moments[one] * scales[i]]
            for i, one in enumerate(used)
        ]
        for step in range(size):
            pivot = rows[step]
            for row in rows[step + 1 :]:
                factor = row[step] / pivot[step]
                for column in range(step, size + 1):
                    row[column] -= factor * pivot[column]
        found = [0.0] * size
        for step in reversed(range(size)):
            row = rows[step]
            known = sum(row[column] * found[column] for column in range(step + 1, size))
            found[step] = (row[size] - known) / row[step]
        return [each * scale for each, scale in zip(found, scales, strict=True)]
