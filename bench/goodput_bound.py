"""Bounds how many requests of a trace any scheduler can serve in time on one device.

Each request takes the device at least some seconds for its prompt, and for its outputs, however
steps are put together. Only what no scheduler saves is counted:

    tokens      the least seconds of a token in a step of any size: weights are read for all at once
    pairs       those of a query and a key that it sees
    prefixes    what an earlier request of the trace begins with too costs nothing

Two counts follow, and the smaller is the bound. With prompts alone each request is a job that comes
when it is sent and must end within the TTFT. All have the same time for it, so jobs in time may as
well be computed as they came, and the most that can be are counted exactly:

    ends[k] = the earliest end of k jobs in time, of those that came so far

With outputs each request is a job that may begin with the first of the trace and is due with its
last token; Moore's method counts the most that are in time.
"""

from collections.abc import Iterator, Sequence
from heapq import heappush, heappushpop
from typing import NamedTuple

import numpy as np

from quire.scheduler.pacing.step_work import StepWork
from quire.workbench.simulation.cost.cost_file import CostFile
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.traces.traced_request import TracedRequest


class DeviceJob(NamedTuple):
    """The least work of one request: when it is sent, the seconds of the device for its prompt and
    for its outputs, and when the first and the last token are due."""

    sent_s: float
    prompt_s: float
    outputs_s: float
    first_due_s: float
    last_due_s: float


def most_in_time(
    requests: Sequence[TracedRequest], cost: CostFile, ttft_s: float, itl_s: float
) -> int:
    """Return how many of the requests, in the order in which they are sent, can be in time at most:
    the first token within `ttft_s`, the others `itl_s` apart in the mean."""
    able = [
        job
        for job in jobs_of(requests, cost, ttft_s, itl_s)
        if job.sent_s + job.prompt_s <= job.first_due_s
    ]
    return min(_most_prompts(able), _most_whole(able))


def jobs_of(
    requests: Sequence[TracedRequest], cost: CostFile, ttft_s: float, itl_s: float
) -> Iterator[DeviceJob]:
    """Yield the least work of each request that the engine takes, in their order."""
    by, server, token_s = cost.step, cost.server, least_token_s(cost)
    ttft_s -= server.request_s + server.request_latency_s
    ttft_s -= server.delta_s + server.reply_latency_s
    for each, num_found in zip(requests, _found(requests), strict=True):
        if each.num_prompt_tokens + each.num_output_tokens > cost.engine.max_model_len:
            continue
        num_tokens = each.num_prompt_tokens - num_found
        pairs = num_tokens * num_found + num_tokens * (num_tokens + 1) // 2
        num_later = each.num_output_tokens - 1
        contexts = num_later * each.num_prompt_tokens + num_later * (num_later + 1) // 2
        yield DeviceJob(
            each.sent_s,
            (token_s + by.prefill_s) * num_tokens + by.pair_s * pairs + by.seq_s,
            (token_s + by.seq_s) * num_later + by.context_token_s * contexts,
            each.sent_s + ttft_s,
            each.sent_s + ttft_s + itl_s * num_later,
        )


def least_token_s(cost: CostFile) -> float:
    """Return the least seconds of a token in a step of any size, what a step takes beside its
    tokens shared out among them."""
    step, last_s = FittedCost(cost.step), cost.step.token_s[-1]
    work = (StepWork(0, 0, num_tokens) for num_tokens in cost.step.token_knots)
    return min((last_s, *(step.step_s(each) / each.num_tokens for each in work)))


def _most_prompts(jobs: Sequence[DeviceJob]) -> int:
    ends = np.full(len(jobs) + 1, np.inf)
    ends[0] = -np.inf
    for job in jobs:
        done = np.maximum(ends[:-1], job.sent_s) + job.prompt_s
        done[done > job.first_due_s] = np.inf
        ends[1:] = np.minimum(ends[1:], done)
    return int(np.isfinite(ends[1:]).sum())


def _most_whole(jobs: Sequence[DeviceJob]) -> int:
    longest_first: list[float] = []
    done_s = min((each.sent_s for each in jobs), default=0.0)
    for job in sorted(jobs, key=lambda each: each.last_due_s):
        seconds = job.prompt_s + job.outputs_s
        done_s += seconds
        if done_s > job.last_due_s:
            done_s += heappushpop(longest_first, -seconds)
        else:
            heappush(longest_first, -seconds)
    return len(longest_first)


def _found(requests: Sequence[TracedRequest]) -> Iterator[int]:
    """Yield how many tokens at the beginning of each prompt an earlier one had too. The last token
    of a prompt is always computed."""
    known: dict[int, int] = {}
    for each in requests:
        num_found = 0
        for part in each.parts:
            num_known = min(known.get(part.content, 0), part.num_tokens)
            num_found += num_known
            if num_known < part.num_tokens:
                break
        for part in each.parts:
            known[part.content] = max(known.get(part.content, 0), part.num_tokens)
        yield min(num_found, each.num_prompt_tokens - 1)
