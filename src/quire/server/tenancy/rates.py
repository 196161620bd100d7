"""The rates of one API key: requests and tokens a minute, what is charged to them, and what its
client is told of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from quire.server.errors import TOO_MANY, RequestError
from quire.server.tenancy.rate_limit import RateLimit

NS_PER_S, NS_PER_MS, MS_PER_S = 10**9, 10**6, 1000
S_PER_MINUTE = 60


class Rate(StrEnum):
    """The kinds of rates, by what they limit."""

    REQUESTS = "requests"
    TOKENS = "tokens"


RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{rate}" for rate in Rate for what in ("limit", "remaining", "reset")
)
"""The headers, as OpenAI's API has them, of answers to a key with rates."""
RATES = "quire.rates"
"""The key under which the ASGI scope of a request that was charged to rates holds them."""
Headers: TypeAlias = Iterator[tuple[str, str]]


class RateLimited(RequestError):
    """A key has had what its rate lets it have; at the end of `wait_ns`, and no sooner, it may have
    what it asked for."""

    def __init__(self, rate: Rate, limit: int, wait_ns: int) -> None:
        super().__init__(
            f"This API key may have {limit} {rate} a minute, and has had them: try again in "
            f"{as_duration(wait_ns)}.",
            code="rate_limit_exceeded",
            status=TOO_MANY,
            retry_after_s=math.ceil(wait_ns / NS_PER_S),
        )
        self.rate = rate


@dataclass(frozen=True, slots=True)
class KeyRates:
    """The rates of one key, each None where it has none. Times are seconds of one clock."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None

    def admit_request(self, now: float) -> None:
        """Charge a request. Raises RateLimited, and charges nothing, where that is too many."""
        if self.requests is None:
            return
        now_ns = _ns(now)
        wait_ns = self.requests.wait_ns(now_ns, 1)
        if wait_ns:
            raise RateLimited(Rate.REQUESTS, self.requests.limit, wait_ns)
        self.requests.take(now_ns, 1)

    def admit_prompt(self, now: float, num_tokens: int, field: str) -> None:
        """Charge the tokens of prompts, given in `field`. Raises RateLimited, and charges nothing,
        where they are too many now, and another RequestError where they always are."""
        if self.tokens is None:
            return
        if num_tokens > self.tokens.limit:
            raise RequestError(
                f"The prompt has {num_tokens} tokens, more than the {self.tokens.limit} a minute "
                "that this API key may have.",
                param=field,
                code="prompt_exceeds_rate",
            )
        now_ns = _ns(now)
        wait_ns = self.tokens.wait_ns(now_ns, num_tokens)
        if wait_ns:
            again_ns = 0 if self.requests is None else self.requests.wait_ns(now_ns, 1)
            raise RateLimited(Rate.TOKENS, self.tokens.limit, max(wait_ns, again_ns))
        self.tokens.take(now_ns, num_tokens)

    def charge_output(self, now: float, num_tokens: int) -> None:
        """Charge tokens that were generated, even beyond the limit: the next prompt waits then."""
        if self.tokens is not None:
            self.tokens.take(_ns(now), num_tokens)

    def give_back_prompt(self, num_tokens: int) -> None:
        """Give the tokens of prompts back that were not computed."""
        if self.tokens is not None:
            self.tokens.give_back(num_tokens)

    def headers(self, now: float) -> Headers:
        """Yield what the client is told with every answer: limits, what is left of each, and when
        it is whole again."""
        for rate, limit in ((Rate.REQUESTS, self.requests), (Rate.TOKENS, self.tokens)):
            if limit is not None:
                yield f"x-ratelimit-limit-{rate}", str(limit.limit)
                yield f"x-ratelimit-remaining-{rate}", str(limit.left(_ns(now)))
                yield f"x-ratelimit-reset-{rate}", as_duration(limit.reset_ns(_ns(now)))


def build_rates(requests_per_minute: int | None, tokens_per_minute: int | None) -> KeyRates | None:
    """Return the rates of a key; None for a key without."""
    if requests_per_minute is None and tokens_per_minute is None:
        return None
    return KeyRates(
        None if requests_per_minute is None else RateLimit(requests_per_minute),
        None if tokens_per_minute is None else RateLimit(tokens_per_minute),
    )


def as_duration(num_ns: int) -> str:
    """Return a time as OpenAI's headers write it: `20ms`, `1.5s`, `6m0s`; never too short."""
    num_ms = -(-num_ns // NS_PER_MS)
    if num_ms < MS_PER_S:
        return f"{num_ms}ms"
    minutes, rest = divmod(num_ms, S_PER_MINUTE * MS_PER_S)
    return f"{minutes}m{rest / MS_PER_S:g}s" if minutes else f"{rest / MS_PER_S:g}s"


def _ns(now: float) -> int:
    return int(now * NS_PER_S)
