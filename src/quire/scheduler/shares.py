"""Counts the service of each tenant: virtual token counters after Sheng et al., Fairness in Serving
Large Language Models (arXiv 2401.00588).

A counter grows by the prompt tokens computed and, at twice the price, the tokens sampled, over the
request's weight. Prefix hits and recomputation cost nothing, so counters only grow.

A tenant that comes anew starts at the level: no lower than the least served who wait, and as much
higher than before as the counters of all who are here have grown in the mean. Were it the former
alone, new tenants that come one after another would keep it where it is, and hold back for ever
whoever was served more.
"""

from collections.abc import Mapping

from quire.scheduler.request import NewRequest, Request

PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0
MIN_SWEEP = 1024


def largest_price(new: NewRequest) -> float:
    """Return the price of a request's prompt or of all that it may sample, whichever is more, over
    its weight."""
    prompt, outputs = len(new.prompt_token_ids), new.stopping.max_tokens
    return max(PROMPT_PRICE * prompt, OUTPUT_PRICE * outputs) / new.weight


class Shares:
    """The counters by tenant. A tenant that is not listed has no more than `_level`, which is where
    it starts. Those in `_live` have so many requests, waiting or running.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._level = 0.0
        self._live: dict[str, int] = {}
        self._sweep_at = MIN_SWEEP

    def __len__(self) -> int:
        """Return the number of tenants that are listed."""
        return len(self._served)

    def served(self, tenant: str) -> float:
        """Return the service of the tenant, in prices over weights."""
        return self._served.get(tenant, self._level)

    def open(self, tenant: str) -> None:
        """Note one more request of the tenant."""
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def close(self, tenant: str) -> None:
        """Note one request of the tenant less."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]

    def enter(self, tenant: str, least: float) -> None:
        """Note that the tenant has someone waiting again: it starts no lower than `least`, the
        counter of the least served who wait, since having waited for nothing is no credit; and if
        it has no request yet, no lower than the level.
        """
        self._level = max(self._level, least)
        lowest = least if tenant in self._live else self._level
        self._served[tenant] = max(self.served(tenant), lowest)
        if len(self._served) > self._sweep_at:
            self._sweep()

    def charge_prompt(self, request: Request, end: int) -> None:
        """Charge the prompt tokens up to `end`, which are scheduled now. Those that were computed
        before a preemption are paid for already.
        """
        first = max(request.num_computed, request.num_charged)
        num_tokens = min(end, request.num_prompt_tokens) - first
        if num_tokens > 0:
            request.num_charged = first + num_tokens
            self._charge(request, PROMPT_PRICE * num_tokens)

    def charge_outputs(self, request: Request, num_tokens: int) -> None:
        """Charge tokens of an output."""
        self._charge(request, OUTPUT_PRICE * num_tokens)

    def charge_elsewhere(self, served: Mapping[str, float]) -> None:
        """Charge tenants for their service in other engines."""
        for tenant, amount in served.items():
            self._add(tenant, amount)
        if len(self._served) > self._sweep_at:
            self._sweep()

    def _charge(self, request: Request, price: float) -> None:
        self._add(request.tenant, price / request.new.weight)

    def _add(self, tenant: str, amount: float) -> None:
        self._served[tenant] = self.served(tenant) + amount
        if tenant in self._live:
            self._level += amount / len(self._live)

    def _sweep(self) -> None:
        """Forget the tenants that would be lifted if they came back."""
        self._served = {
            tenant: served
            for tenant, served in self._served.items()
            if served >= self._level or tenant in self._live
        }
        self._sweep_at = max(MIN_SWEEP, 2 * len(self._served))
