"""Forecasts how requests that come at once are served, step by step as the scheduler would: each
running request decodes, and the rest of the token budget goes to prompts in their order.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import msgspec

from quire.simulation.step_work import StepWork


class StepCost(Protocol):
    """Estimates the time of a step."""

    def step_s(self, work: StepWork) -> float: ...


class Load(msgspec.Struct, frozen=True):
    """Requests that come at once, all alike. Lengths are in tokens."""

    num_requests: int
    num_input_tokens: int
    num_output_tokens: int


class StepBounds(msgspec.Struct, frozen=True):
    """The tokens of a step, and the requests that run at once: by configuration and by memory."""

    max_num_batched_tokens: int
    max_num_seqs: int


class Forecast(msgspec.Struct, frozen=True):
    """The forecast of a load.

    num_running: the requests that run at once; the others wait.
    ttft_s: the mean time to the first token, the wait included. max_ttft_s: the longest.
    itl_s: the mean time from one token of a request to the next.
    output_tokens_s: the output tokens of all over the time until the last one.
    """

    load: Load
    num_running: int
    ttft_s: float
    max_ttft_s: float
    itl_s: float
    output_tokens_s: float


@dataclass(slots=True)
class _Request:
    """A request: what is computed of its prompt, its output, and the times of its tokens."""

    num_computed: int = 0
    num_output: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


def forecast(cost: StepCost, load: Load, bounds: StepBounds) -> Forecast:
    """Return the forecast of a load, which has at least one request, and tokens in and out. Raises
    ValueError where nothing can run."""
    if bounds.max_num_seqs < 1 or bounds.max_num_batched_tokens < bounds.max_num_seqs:
        raise ValueError(f"no request can run within {bounds}")
    requests = [_Request() for _ in range(load.num_requests)]
    waiting, running, now_s = deque(requests), list[_Request](), 0.0
    while waiting or running:
        while waiting and len(running) < bounds.max_num_seqs:
            running.append(waiting.popleft())
        work, computed = _next_step(running, load, bounds.max_num_batched_tokens)
        now_s += cost.step_s(work)
        for request, num_tokens in computed:
            _update(request, num_tokens, load, now_s)
        running = [each for each in running if each.num_output < load.num_output_tokens]
    gaps = [each.last_s - each.first_s for each in requests]
    num_gaps = max(load.num_output_tokens - 1, 1) * load.num_requests
    return Forecast(
        load=load,
        num_running=min(load.num_requests, bounds.max_num_seqs),
        ttft_s=sum(each.first_s for each in requests) / load.num_requests,
        max_ttft_s=max(each.first_s for each in requests),
        itl_s=sum(gaps) / num_gaps,
        output_tokens_s=load.num_requests * load.num_output_tokens / now_s,
    )


def _next_step(
    running: list[_Request], load: Load, budget: int
) -> tuple[StepWork, list[tuple[_Request, int]]]:
    """Return the work of the next step, and how many tokens of which request it computes."""
    decoding = [each for each in running if each.num_computed >= load.num_input_tokens]
    chosen = [(each, 1) for each in decoding]
    num_left, num_pairs = budget - len(decoding), 0
    for each in running:
        num_tokens = min(load.num_input_tokens - each.num_computed, num_left)
        if num_tokens > 0:
            chosen.append((each, num_tokens))
            num_left -= num_tokens
            num_pairs += num_tokens * each.num_computed + num_tokens * (num_tokens + 1) // 2
    work = StepWork(
        num_seqs=len(chosen),
        num_prefill_tokens=budget - len(decoding) - num_left,
        num_decode_tokens=len(decoding),
        num_context_tokens=sum(load.num_input_tokens + each.num_output for each in decoding),
        num_prefill_pairs=num_pairs,
    )
    return work, chosen


def _update(request: _Request, num_tokens: int, load: Load, now_s: float) -> None:
    if request.num_computed < load.num_input_tokens:
        request.num_computed += num_tokens
    if request.num_computed < load.num_input_tokens:
        return
    request.num_output += 1
    request.last_s = now_s
    if request.num_output == 1:
        request.first_s = now_s
