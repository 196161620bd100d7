"""The engine request that computes and pins a prefix: it ends with its prompt."""

from typing import NamedTuple

from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.server.apis.prefixes.protocol import PrefixFields
from quire.server.generation.context import Prompt
from quire.server.generation.engine_requests import endpoint_of, sharing_terms
from quire.server.models.served_model import ServingState
from quire.server.tenancy.tenants import Tenant


class PrefixBuilder(NamedTuple):
    """Builds the engine request of a prefix."""

    request: PrefixFields

    def build(
        self, answer_id: str, prompts: tuple[Prompt, ...], serving: ServingState, tenant: Tenant
    ) -> tuple[NewRequest, ...]:
        """Return the request for the one prefix, cut to full blocks: no more of it can be
        pinned."""
        (prompt,) = prompts
        num_over = len(prompt.token_ids) % serving.facts.block_size
        new = NewRequest(
            f"{answer_id}-0",
            prompt.token_ids[: len(prompt.token_ids) - num_over],
            Sampling(),
            Stopping(max_tokens=0),
            sharing_terms(self.request.cache_salt, prompt.token_ids, serving, tenant),
            tenant=tenant.name,
            weight=tenant.weight,
            priority=self.request.priority or 0,
            pins_prompt=True,
            endpoint=endpoint_of(answer_id),
        )
        return (new,)
