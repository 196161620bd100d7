"""The rules that `bench.goodput` compares, and the tokens of a step under each."""

from collections.abc import Callable
from typing import NamedTuple

from bench.pace_rules import DecodeFirst, FixedBudget, PrefillPressure
from quire.scheduler.pacing.pace import PaceRule
from quire.scheduler.scheduler import Scheduler


class Contender(NamedTuple):
    """A rule: the most tokens of a step, what gives the rule to a scheduler, None for Quire's own,
    and whether requests have latency targets."""

    name: str
    num_tokens: int
    rule_of: Callable[[Scheduler], PaceRule] | None
    has_targets: bool = False


MOST_TOKENS = 8192
"""The tokens of a step at most, under rules that decide on fewer themselves."""
PARTLY = 655
"""Four hundredths of a context of 16,384 tokens: what vLLM has for `long_prefill_token_threshold`
where it computes several prompts at once."""
FEW, CAPPED = 64, 1024
"""Tokens of prompts beside outputs where these go first, tokens of a step under pressure: the best
fixed budget on two of the traces."""

BUDGETS = tuple(
    Contender(f"{num_tokens:,}", num_tokens, lambda _: FixedBudget())
    for num_tokens in (256, 512, 1024, 2048, 4096)
)
VLLM = BUDGETS[3]
"""vLLM's rule with the budget that it has on most devices."""
TARGETS = Contender("targets", MOST_TOKENS, None, has_targets=True)
CONTENDERS = (
    *BUDGETS,
    Contender("vLLM, several prompts", 2048, lambda _: FixedBudget(PARTLY)),
    Contender("decode first", MOST_TOKENS, lambda _: DecodeFirst(FEW)),
    Contender(
        "P-PAS",
        MOST_TOKENS,
        lambda scheduler: PrefillPressure(CAPPED, lambda: scheduler.stats.num_waiting),
    ),
    TARGETS,
)
