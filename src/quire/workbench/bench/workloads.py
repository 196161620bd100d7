"""The workloads: counts of clients, requests and tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

MAX_WARM_UP_OUTPUT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Workload:
    """A closed loop of `concurrency` clients that together send `num_requests` requests."""

    name: str
    purpose: str
    concurrency: int
    num_requests: int
    num_shared_tokens: int
    num_unique_tokens: int
    num_output_tokens: int
    counts_prompt_tokens: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of one prompt, the part shared by all requests included."""
        return self.num_shared_tokens + self.num_unique_tokens

    @property
    def unit(self) -> str:
        """The unit in which the throughput of this workload is counted."""
        return "total tok/s" if self.counts_prompt_tokens else "output tok/s"

    def warm_up(self) -> "Workload":
        """Return the workload with one request per client and few tokens, to be run untimed."""
        return replace(
            self,
            num_requests=min(self.concurrency, self.num_requests),
            num_output_tokens=min(MAX_WARM_UP_OUTPUT_TOKENS, self.num_output_tokens),
        )

    def with_prompt(self, num_tokens: int) -> "Workload":
        """Return the workload with prompts of another length, at least 1; the shared part keeps its
        share, rounded down."""
        num_shared = num_tokens * self.num_shared_tokens // self.num_prompt_tokens
        return replace(
            self, num_shared_tokens=num_shared, num_unique_tokens=num_tokens - num_shared
        )


_ALL = (
    Workload(
        name="latency",
        purpose="one client",
        concurrency=1,
        num_requests=4,
        num_shared_tokens=0,
        num_unique_tokens=128,
        num_output_tokens=128,
    ),
    Workload(
        name="throughput",
        purpose="many clients in a closed loop",
        concurrency=32,
        num_requests=64,
        num_shared_tokens=0,
        num_unique_tokens=128,
        num_output_tokens=64,
    ),
    Workload(
        name="prefix",
        purpose="all prompts of a round begin alike",
        concurrency=16,
        num_requests=32,
        num_shared_tokens=512,
        num_unique_tokens=32,
        num_output_tokens=32,
    ),
    Workload(
        name="prefill",
        purpose="long prompts, short answers",
        concurrency=4,
        num_requests=8,
        num_shared_tokens=0,
        num_unique_tokens=1024,
        num_output_tokens=8,
        counts_prompt_tokens=True,
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({each.name: each for each in _ALL})
