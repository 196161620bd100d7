"""Charges tenants in each engine for the service that they have had in the others, so that fair
shares hold over all of them.
"""

from collections.abc import Mapping

from quire.scheduler.request import NewRequest
from quire.scheduler.shares import OUTPUT_PRICE, PROMPT_PRICE
from quire.scheduler.usage.ledger import UsageUpdate

MAX_WEIGHTS = 100_000


class Charges:
    """Adds up what engines tell of usage, for the others, in prices over the weights that tenants
    had last.

    Of a prompt it is told sooner what was cached than what it has in all: what is found too much is
    set off against what is told later, so that nobody is charged less than nothing.
    """

    def __init__(self, num_engines: int) -> None:
        self._due: list[dict[str, float]] = [{} for _ in range(num_engines)]
        self._too_much: dict[tuple[int, str], float] = {}
        self._weights: dict[str, float] = {}

    def note(self, request: NewRequest) -> None:
        """Note the weight of a request's tenant."""
        if len(self._weights) >= MAX_WEIGHTS:
            self._weights.clear()
        self._weights[request.tenant] = request.weight

    def take(self, index: int, usage: UsageUpdate) -> None:
        """Take what an engine tells."""
        for tenant, num in usage.num_generated.items():
            self._add(index, tenant, OUTPUT_PRICE * num)
        for each in usage.whole:
            num_computed = each.num_prompt_tokens - each.num_cached_tokens
            price = PROMPT_PRICE * num_computed + OUTPUT_PRICE * each.num_generation_tokens
            self._add(index, each.tenant, price)

    def due(self, index: int) -> Mapping[str, float]:
        """Return what an engine has not been told, which counts as told then."""
        due, self._due[index] = self._due[index], {}
        return due

    def forget(self, index: int) -> None:
        """Note that an engine has ended: what it told before is settled."""
        for key in [key for key in self._too_much if key[0] == index]:
            del self._too_much[key]

    def _add(self, index: int, tenant: str, price: float) -> None:
        price += self._too_much.pop((index, tenant), 0.0)
        if price < 0:
            self._too_much[index, tenant] = price
        elif price:
            served = price / self._weights.get(tenant, 1.0)
            for number, due in enumerate(self._due):
                if number != index:
                    due[tenant] = due.get(tenant, 0.0) + served
