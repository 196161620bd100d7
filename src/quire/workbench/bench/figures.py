"""The figures of a round. Tokens are those in the server's usage, never those asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from quire.workbench.bench.load import LoadOutcome, Percentiles, percentiles
from quire.workbench.bench.replies import Failure, Reply, parse_reply
from quire.workbench.bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class Samples:
    """Every time that was measured, in milliseconds, to a thousandth."""

    first_token_ms: tuple[float, ...]
    inter_token_ms: tuple[float, ...]
    end_to_end_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One workload, run once on one server.

    Rates are tokens of good replies over the wall time from the first request's start to the last
    one's end; token counts and rates are None if a reply came without usage. Time to first token
    and end-to-end time are from before the connection opens; inter-token latency is the gap between
    two events with text; time per output token is per reply, first to last text over its tokens.
    """

    num_requests: int
    num_failed: int
    num_other_length: int
    num_without_usage: int
    first_failure: str | None
    prompt_lengths: tuple[int, int] | None
    num_prompt_tokens: int | None
    num_cached_tokens: int | None
    num_output_tokens: int | None
    wall_s: float
    client_cpu_s: float
    output_tok_s: float | None
    total_tok_s: float | None
    first_token: Percentiles
    inter_token: Percentiles
    per_output_token: Percentiles
    end_to_end: Percentiles
    samples: Samples

    @property
    def hit_ratio(self) -> float | None:
        """Cached over all prompt tokens; None where usage does not have them."""
        if self.num_cached_tokens is None or not self.num_prompt_tokens:
            return None
        return self.num_cached_tokens / self.num_prompt_tokens


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _milliseconds(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(each * 1000, 3) for each in seconds)


def _per_output_token_s(reply: Reply) -> list[float]:
    if reply.num_output_tokens is None or reply.num_output_tokens < 2 or not reply.text_times_s:
        return []
    spread_s = reply.text_times_s[-1] - reply.text_times_s[0]
    return [spread_s / (reply.num_output_tokens - 1)]


def figures_of(workload: Workload, load: LoadOutcome) -> LoadFigures:
    """Return the figures of raw replies, after the load is over."""
    parsed = [parse_reply(each) for each in load.exchanges]
    replies = [each for each in parsed if isinstance(each, Reply)]
    failures = [each for each in parsed if isinstance(each, Failure)]
    outputs = [reply.num_output_tokens for reply in replies]
    prompts = [reply.num_prompt_tokens for reply in replies]
    num_output, num_prompt = _sum(outputs), _sum(prompts)
    known_lengths = [count for count in prompts if count is not None]
    known = num_output is not None and num_prompt is not None
    texts_s = [reply.text_times_s for reply in replies]
    first_s = [reply.text_times_s[0] - reply.start_s for reply in replies if reply.text_times_s]
    inter_s = [b - a for stamps in texts_s for a, b in pairwise(stamps)]
    whole_s = [reply.end_s - reply.start_s for reply in replies]
    return LoadFigures(
        num_requests=len(parsed),
        num_failed=len(failures),
        num_other_length=sum(n not in (None, workload.num_output_tokens) for n in outputs),
        num_without_usage=sum(
            n is None or m is None for n, m in zip(outputs, prompts, strict=True)
        ),
        first_failure=failures[0].reason if failures else None,
        prompt_lengths=(min(known_lengths), max(known_lengths)) if known_lengths else None,
        num_prompt_tokens=num_prompt,
        num_cached_tokens=_sum([reply.num_cached_tokens for reply in replies]),
        num_output_tokens=num_output,
        wall_s=load.wall_s,
        client_cpu_s=load.client_cpu_s,
        output_tok_s=None if num_output is None else num_output / load.wall_s,
        total_tok_s=((num_prompt or 0) + (num_output or 0)) / load.wall_s if known else None,
        first_token=percentiles(first_s),
        inter_token=percentiles(inter_s),
        per_output_token=percentiles([s for r in replies for s in _per_output_token_s(r)]),
        end_to_end=percentiles(whole_s),
        samples=Samples(*map(_milliseconds, (first_s, inter_s, whole_s))),
    )
