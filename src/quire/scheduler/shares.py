"""Counts the service of each tenant: virtual token counters after Sheng et al., Fairness in Serving
Large Language Models (arXiv 2401.00588).

A counter grows by the prompt tokens computed and, at twice the price, the tokens sampled, over the
request's weight. Prefix hits and recomputation cost nothing, so counters only grow.
"""

from collections.abc import Mapping

from quire.scheduler.request import Request

PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0
MIN_SWEEP = 1024


class Shares:
    """The counters by tenant. A tenant that is not listed has no more than `_level`, which is where
    it starts.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._level = 0.0
        self._sweep_at = MIN_SWEEP

    def __len__(self) -> int:
        """Return the number of tenants that are listed."""
        return len(self._served)

    def served(self, tenant: str) -> float:
        """Return the service of the tenant, in prices over weights."""
        return self._served.get(tenant, self._level)

    def enter(self, tenant: str, level: float) -> None:
        """Note that the tenant has someone waiting again: it starts no lower than `level`, that of
        the least served who wait, since having waited for nothing is no credit.
        """
        self._level = max(self._level, level)
        self._served[tenant] = max(self.served(tenant), self._level)
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
        for tenant, price in served.items():
            self._served[tenant] = self._served.get(tenant, self._level) + price
        if len(self._served) > self._sweep_at:
            self._sweep()

    def _charge(self, request: Request, price: float) -> None:
        tenant = request.tenant
        self._served[tenant] = self._served.get(tenant, self._level) + price / request.new.weight

    def _sweep(self) -> None:
        """Forget the tenants that would be lifted if they came back."""
        self._served = {
            tenant: served for tenant, served in self._served.items() if served >= self._level
        }
        self._sweep_at = max(MIN_SWEEP, 2 * len(self._served))
