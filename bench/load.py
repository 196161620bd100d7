"""Closed-loop load on an OpenAI-style streaming completion server, and what it measured.

    python -m bench.load --port 8000 --model MODEL_DIR --peer quire --workload W2

runs one workload against a server that is already up and prints the result as JSON.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.peers import PEERS, BodyField
from bench.prompts import build_prompts
from bench.requests import Ask, RequestSource
from bench.servers import HOST
from bench.workloads import WORKLOADS
from quire.workbench.bench.exchange import ServerAddress, build_request
from quire.workbench.bench.load import ClosedLoopLoad, LoadOutcome, Percentiles, percentiles
from quire.workbench.bench.replies import Failure, Reply, parse_reply
from quire.workbench.bench.workloads import Workload

COMPLETIONS_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a load: a port on loopback, the model's name there, the peer's own fields."""

    port: int
    model_name: str
    extra_fields: Callable[[int], Mapping[str, BodyField]]

    @property
    def address(self) -> ServerAddress:
        return ServerAddress(HOST, self.port)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One workload, run once.

    Throughput is tokens of good replies over the wall time from the first request's start to the
    last one's end. Time to first token and end-to-end time are per request, from before its
    connection opens; inter-token latency is the gap between two events that carry text.
    """

    num_requests: int
    num_failed: int
    num_wrong_length: int
    num_without_usage: int
    first_failure: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    wall_s: float
    client_cpu_s: float
    output_tok_s: float
    total_tok_s: float
    first_token: Percentiles
    inter_token: Percentiles
    end_to_end: Percentiles


def completion_request(target: Target, ask: Ask) -> bytes:
    """Return the request for a streamed completion."""
    body = {
        "model": target.model_name,
        "prompt": ask.prompt,
        "max_tokens": ask.num_output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.extra_fields(ask.num_output_tokens),
    }
    return build_request(target.address, COMPLETIONS_PATH, msgspec.json.encode(body))


def _summary(workload: Workload, asks: Sequence[Ask], load: LoadOutcome) -> LoadResult:
    parsed = [parse_reply(each) for each in load.exchanges]
    replies = [each for each in parsed if isinstance(each, Reply)]
    failures = [each for each in parsed if isinstance(each, Failure)]
    counts = [
        len(reply.text_times_s) if reply.num_output_tokens is None else reply.num_output_tokens
        for reply in replies
    ]
    num_prompt_tokens = sum(
        reply.num_prompt_tokens or workload.num_prompt_tokens for reply in replies
    )
    times_s = [reply.text_times_s for reply in replies]
    return LoadResult(
        num_requests=len(load.exchanges),
        num_failed=len(failures),
        num_wrong_length=(
            Counter(counts) - Counter(each.num_output_tokens for each in asks)
        ).total(),
        num_without_usage=sum(reply.num_output_tokens is None for reply in replies),
        first_failure=failures[0].reason if failures else None,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=sum(reply.num_cached_tokens or 0 for reply in replies),
        num_output_tokens=sum(counts),
        wall_s=load.wall_s,
        client_cpu_s=load.client_cpu_s,
        output_tok_s=sum(counts) / load.wall_s,
        total_tok_s=(num_prompt_tokens + sum(counts)) / load.wall_s,
        first_token=percentiles(
            [reply.text_times_s[0] - reply.start_s for reply in replies if reply.text_times_s]
        ),
        inter_token=percentiles([b - a for stamps in times_s for a, b in pairwise(stamps)]),
        end_to_end=percentiles([reply.end_s - reply.start_s for reply in replies]),
    )


def run_workload(
    target: Target, workload: Workload, asks: Sequence[Ask], timeout_s: float
) -> LoadResult:
    """Run the workload once; requests still open after timeout_s count as failed."""
    requests = [completion_request(target, ask) for ask in asks]
    loop = ClosedLoopLoad(target.address, workload.concurrency, timeout_s)
    return _summary(workload, asks, loop.run(requests))


def main() -> None:
    """Load a server that is already running, once."""
    parser = argparse.ArgumentParser(description="run one workload against a running server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--peer", choices=sorted(PEERS), default="quire")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="W2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=600)
    args = parser.parse_args()
    peer, workload = PEERS[args.peer], WORKLOADS[args.workload]
    asks = RequestSource(build_prompts(args.model)).asks(workload, args.seed)
    target = Target(args.port, peer.model_name(args.model), peer.extra_fields)
    result = run_workload(target, workload, asks, args.timeout_s)
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
