"""The engine requests of a rerank or score request: one for each pair, which ends with a score."""

from quire.scheduler.request import NewRequest, Pooling, PoolingKind, Sampling, Stopping
from quire.server.models.served_model import ServingState
from quire.server.openai.protocol.scoring import ScoringFields
from quire.server.requests.context import Prompt
from quire.server.requests.engine_requests import sharing_terms
from quire.server.tenancy.tenants import Tenant

NO_OUTPUT = Stopping(max_tokens=0)


def scoring_requests(
    request: ScoringFields,
    answer_id: str,
    prompts: tuple[Prompt, ...],
    serving: ServingState,
    tenant: Tenant,
) -> tuple[NewRequest, ...]:
    """Return one request for each pair, in their order."""
    return tuple(
        NewRequest(
            f"{answer_id}-{index}",
            prompt.token_ids,
            Sampling(),
            NO_OUTPUT,
            sharing_terms(request.cache_salt, prompt.token_ids, serving, tenant),
            tenant=tenant.name,
            weight=tenant.weight,
            priority=request.priority or 0,
            pooling=Pooling(PoolingKind.CLS, is_normalized=False, second_text=prompt.second_text),
        )
        for index, prompt in enumerate(prompts)
    )
