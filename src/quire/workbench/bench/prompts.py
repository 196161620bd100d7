"""Generates prompts of about a given number of tokens, or of exactly so many where a server takes
token ids.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire.workbench.bench.workloads import Workload

Prompt: TypeAlias = str | list[int]

WORDS = tuple(
    "the of and to in is you that it he was for on are as with his they I at be this have from or"
    " one had by word but not what all were we when your can said there use an each which she do"
    " how their if will up other about out many then them these so some her would make like him"
    " into time has look two more write go see number no way could people my than first water been"
    " call who oil its now find long down day did get come made may part over new sound take only"
    " little work know place year live me back give most very after thing our just name good man"
    " think say great where help through much before line right too mean old any same tell boy"
    " follow came want show also around form three small set put end does another well large must"
    " big even such because turn here why ask went men read need land different home us move try"
    " kind hand picture again change off play spell air away animal house point page letter mother"
    " answer found study still learn should world".split()
)


@dataclass(frozen=True, slots=True)
class WordRate:
    """The rate at which a server counts words of `WORDS`: so many tokens for a template or a start
    token, and so many for each word."""

    tokens_per_word: float
    extra_tokens: float

    def num_words(self, num_tokens: int) -> int:
        """Return how many words have about so many tokens, at least one."""
        return max(round((num_tokens - self.extra_tokens) / self.tokens_per_word), 1)


def rate_from(fewer: tuple[int, int], more: tuple[int, int]) -> WordRate:
    """Return the rate that follows from two pairs (words, tokens). Words that seem to take no token
    count one each."""
    rate = (more[1] - fewer[1]) / (more[0] - fewer[0])
    if rate <= 0:
        return WordRate(1.0, 0.0)
    return WordRate(rate, fewer[1] - rate * fewer[0])


def words(seed: str, count: int) -> str:
    """Return random words; equal seeds give equal words."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


@dataclass(frozen=True, slots=True)
class PromptGenerator:
    """Generates prompts; equal seeds give equal prompts.

    With a `pool` of token ids prompts are sampled from it and have exact lengths; without one they
    are words, counted by `rate`.
    """

    rate: WordRate
    pool: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        return "token ids, exact" if self.pool else "words, about as many tokens as asked"

    def generate(self, workload: Workload, seed: int) -> list[Prompt]:
        """Return one prompt for each request; only the shared part is common to them."""
        shared = f"{seed}/{workload.name}/shared"
        own = [f"{seed}/{workload.name}/{index}" for index in range(workload.num_requests)]
        if self.pool:
            start = self._ids(shared, workload.num_shared_tokens)
            return [start + self._ids(each, workload.num_unique_tokens) for each in own]
        total = self.rate.num_words(workload.num_prompt_tokens)
        num_shared = total * workload.num_shared_tokens // workload.num_prompt_tokens
        beginning = [words(shared, num_shared)] if num_shared else []
        return [" ".join([*beginning, words(each, total - num_shared)]) for each in own]

    def _ids(self, seed: str, count: int) -> list[int]:
        return random.Random(seed).choices(self.pool, k=count)


def common_pool(pools: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the pool of all servers, empty where they differ: token ids mean the same only to
    servers whose tokenizers made the same of the words."""
    return pools[0] if all(pool == pools[0] for pool in pools) else ()
