"""An arrival is what the scheduler reads of a new request: counts and numbers. A replay makes
requests of it whose tokens mean nothing.
"""

from typing import NamedTuple

from quire.cache.sharing import OPEN, SharingTerms
from quire.scheduler.request import NewRequest, Sampling, Stopping

PLAIN_TOKEN = 0
"""Every token of a replay except stop tokens."""
END_TOKEN = 1
STOP_TOKEN = 2
_ANOTHER = SharingTerms(b"another")


class ArrivalSnapshot(NamedTuple):
    """A new request without its tokens. Instead of its tenant it has a number, which equal tenants
    share, and so for its session; `fork_differs` says that its source had another prompt."""

    id: str
    num_prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    needs_all_rows: bool = False
    tenant: int = 0
    weight: float = 1.0
    priority: int = 0
    time_limit_s: float | None = None
    fork_of: str | None = None
    fork_differs: bool = False
    reports_prefill: bool = False
    pins_prompt: bool = False
    target_ttft_s: float | None = None
    target_itl_s: float | None = None
    session: int = 0
    endpoint: str = ""
    retention_s: float | None = None


class TenantNumbers:
    """Numbers tenants, and sessions apart from them, in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self._sessions: dict[str, int] = {"": 0}

    def number(self, tenant: str) -> int:
        return self._numbers.setdefault(tenant, len(self._numbers))

    def session(self, name: str) -> int:
        return self._sessions.setdefault(name, len(self._sessions))

    def restart(self) -> None:
        """Number all afresh."""
        self._numbers = {"": 0}
        self._sessions = {"": 0}


def arrival_of(
    new: NewRequest, numbers: TenantNumbers, *, fork_differs: bool = False
) -> ArrivalSnapshot:
    """Return the facts of a request that the scheduler reads."""
    return ArrivalSnapshot(
        new.id,
        len(new.prompt_token_ids),
        new.stopping.max_tokens,
        new.stopping.min_tokens,
        new.needs_all_rows,
        numbers.number(new.tenant),
        new.weight,
        new.priority,
        new.time_limit_s,
        new.fork_of,
        fork_differs,
        new.reports_prefill,
        new.pins_prompt,
        new.target_ttft_s,
        new.target_itl_s,
        numbers.session(new.session),
        new.endpoint,
        new.retention_s,
    )


def request_of(arrival: ArrivalSnapshot) -> NewRequest:
    """Return a request that the scheduler treats like the recorded one."""
    return NewRequest(
        arrival.id,
        (PLAIN_TOKEN,) * arrival.num_prompt_tokens,
        Sampling(),
        Stopping(arrival.max_tokens, arrival.min_tokens, (END_TOKEN,), (STOP_TOKEN,)),
        sharing=_ANOTHER if arrival.fork_differs else OPEN,
        prompt_logprobs=0 if arrival.needs_all_rows else None,
        tenant=tenant_of(arrival.tenant),
        weight=arrival.weight,
        priority=arrival.priority,
        time_limit_s=arrival.time_limit_s,
        fork_of=arrival.fork_of,
        reports_prefill=arrival.reports_prefill,
        pins_prompt=arrival.pins_prompt,
        target_ttft_s=arrival.target_ttft_s,
        target_itl_s=arrival.target_itl_s,
        session=tenant_of(arrival.session),
        endpoint=arrival.endpoint,
        retention_s=arrival.retention_s,
    )


def tenant_of(number: int) -> str:
    """Return the tenant, or the session, that has a number in a replay."""
    return str(number) if number else ""
