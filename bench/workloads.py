"""The workloads of comparisons, as counts of requests and tokens."""

from collections.abc import Mapping
from types import MappingProxyType

from quire.workbench.bench.workloads import Workload

_ALL = (
    Workload(
        name="W1",
        purpose="single stream: latency of one user",
        concurrency=1,
        num_requests=3,
        num_shared_tokens=0,
        num_unique_tokens=128,
        num_output_tokens=128,
    ),
    Workload(
        name="W2",
        purpose="throughput of a full batch",
        concurrency=32,
        num_requests=64,
        num_shared_tokens=0,
        num_unique_tokens=128,
        num_output_tokens=64,
    ),
    Workload(
        name="W3",
        purpose="one long prefix shared by all prompts",
        concurrency=16,
        num_requests=32,
        num_shared_tokens=512,
        num_unique_tokens=32,
        num_output_tokens=32,
    ),
    Workload(
        name="W4",
        purpose="long prompts, short answers",
        concurrency=4,
        num_requests=8,
        num_shared_tokens=0,
        num_unique_tokens=1024,
        num_output_tokens=8,
        counts_prompt_tokens=True,
    ),
    Workload(
        name="W5",
        purpose="many small requests: the server's own cost",
        concurrency=64,
        num_requests=256,
        num_shared_tokens=0,
        num_unique_tokens=64,
        num_output_tokens=64,
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({each.name: each for each in _ALL})
"""The five that a comparison is made of unless others are named."""

TRACED = Workload(
    name="WA",
    purpose="many clients with the lengths of real conversations",
    concurrency=32,
    num_requests=64,
    num_shared_tokens=0,
    num_unique_tokens=1024,
    num_output_tokens=256,
)
"""Lengths are those of a trace; these here are the longest that are taken of it."""
