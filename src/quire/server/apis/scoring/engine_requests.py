"""The engine requests of a rerank or score request: one for each pair, which ends with a score."""

from typing import NamedTuple

from quire.scheduler.request import NewRequest, Pooling, PoolingKind
from quire.server.apis.scoring.protocol import ScoringFields
from quire.server.generation.context import Prompt
from quire.server.generation.engine_requests import pooled_requests
from quire.server.models.served_model import ServingState
from quire.server.tenancy.tenants import Tenant


class ScoringBuilder(NamedTuple):
    """Builds the engine requests of a rerank or score request."""

    request: ScoringFields

    def build(
        self, answer_id: str, prompts: tuple[Prompt, ...], serving: ServingState, tenant: Tenant
    ) -> tuple[NewRequest, ...]:
        """Return one request for each pair, in their order."""
        pooled = (
            (prompt, Pooling(PoolingKind.CLS, is_normalized=False, second_text=prompt.second_text))
            for prompt in prompts
        )
        return pooled_requests(self.request, answer_id, pooled, serving, tenant)
