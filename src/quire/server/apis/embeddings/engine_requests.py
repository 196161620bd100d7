"""The engine requests of one embedding request: one for each input, which ends with its vector."""

from typing import NamedTuple

from quire.scheduler.request import NewRequest, Pooling
from quire.server.apis.embeddings.inputs import embeddings_of
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.generation.context import Prompt
from quire.server.generation.engine_requests import pooled_requests
from quire.server.models.served_model import ServingState
from quire.server.tenancy.tenants import Tenant


class EmbeddingBuilder(NamedTuple):
    """Builds the engine requests of an embedding request."""

    request: EmbeddingRequest

    def build(
        self, answer_id: str, prompts: tuple[Prompt, ...], serving: ServingState, tenant: Tenant
    ) -> tuple[NewRequest, ...]:
        """Return one request for each input, in their order."""
        facts, normalize = embeddings_of(serving.input), self.request.normalize
        is_normalized = facts.is_normalized if normalize is None else normalize
        pooling = Pooling(facts.pooling, self.request.dimensions, is_normalized)
        pooled = ((prompt, pooling) for prompt in prompts)
        return pooled_requests(self.request, answer_id, pooled, serving, tenant)
