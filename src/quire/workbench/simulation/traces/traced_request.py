"""A request of a trace: when it is sent, what its prompt shares with others, and its lengths."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from quire.scheduler.request import NewRequest, Sampling, Stopping

END_TOKEN = 0
"""The token that ends a simulated sequence; no prompt has it."""
_MIX, _SEED_MIX, _SPACE = 2654435761, 40503, 1 << 31


class PromptPart(NamedTuple):
    """Tokens of a prompt: parts of equal `content` have equal tokens, as far as both reach."""

    content: int
    num_tokens: int

    def token_ids(self, seed: int) -> range:
        """Return the token ids, which no other content begins with."""
        first = 1 + (self.content + seed * _SEED_MIX) * _MIX % _SPACE
        return range(first, first + self.num_tokens)


class LaterTurn(NamedTuple):
    """A turn of a session: sent `gap_s` after the answer before, with a part more in its prompt."""

    gap_s: float
    part: PromptPart
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request of a trace, sent `sent_s` seconds after its beginning.

    num_output_tokens: the tokens after which its output ends.
    max_tokens: the most tokens that it may have, None for as many as it has.
    fork_of: another request, with the same prompt, whose blocks it takes over.
    before: the tokens that its prompt begins with.
    later: the turns of a session that follow; of one (`is_turn`) all but the last call tools.
    """

    id: str
    sent_s: float
    parts: tuple[PromptPart, ...]
    num_output_tokens: int
    max_tokens: int | None = None
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    fork_of: str | None = None
    time_limit_s: float | None = None
    target_ttft_s: float | None = None
    target_itl_s: float | None = None
    before: tuple[int, ...] = ()
    later: tuple[LaterTurn, ...] = ()
    is_turn: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.before) + sum(each.num_tokens for each in self.parts)

    def next_turn(self, prompt: tuple[int, ...], outputs: Sequence[int]) -> "TracedRequest":
        """Return the next turn of a session, sent as long after the end of this one as it says."""
        turn, number = self.later[0], int(self.id.rpartition(".")[2]) + 1
        return replace(
            self,
            id=f"{self.id.rpartition('.')[0]}.{number}",
            sent_s=turn.gap_s,
            before=(*prompt, *outputs),
            parts=(turn.part,),
            num_output_tokens=turn.num_output_tokens,
            later=self.later[1:],
        )

    @property
    def ends_early(self) -> bool:
        """Whether its output ends before it has all the tokens that it may have."""
        return self.max_tokens is not None and self.max_tokens > self.num_output_tokens

    def new_request(self, seed: int) -> NewRequest:
        """Return the request as the scheduler takes it, its prompt as token ids."""
        own = (token for part in self.parts for token in part.token_ids(seed))
        tokens = (*self.before, *own)
        max_tokens = self.num_output_tokens if self.max_tokens is None else self.max_tokens
        return NewRequest(
            self.id,
            tokens,
            Sampling(),
            Stopping(max_tokens, eos_token_ids=(END_TOKEN,)),
            tenant=self.tenant,
            weight=self.weight,
            priority=self.priority,
            fork_of=self.fork_of,
            time_limit_s=self.time_limit_s,
            target_ttft_s=self.target_ttft_s,
            target_itl_s=self.target_itl_s,
        )


def assigned(
    requests: Iterable[TracedRequest], *, num_tenants: int, num_priorities: int, seed: int
) -> Iterator[TracedRequest]:
    """Yield the requests with tenants and priorities drawn by the seed, each as likely as any
    other; as they are where there is one of both."""
    draw = random.Random(seed)
    for each in requests:
        tenant, priority = draw.randrange(num_tenants), draw.randrange(num_priorities)
        yield replace(
            each,
            tenant=f"tenant-{tenant}" if num_tenants > 1 else each.tenant,
            priority=priority if num_priorities > 1 else each.priority,
        )


def with_targets(
    requests: Iterable[TracedRequest], ttft_s: float | None, itl_s: float | None
) -> Iterator[TracedRequest]:
    """Yield the requests with latency targets; None keeps their own."""
    for each in requests:
        yield replace(
            each,
            target_ttft_s=each.target_ttft_s if ttft_s is None else ttft_s,
            target_itl_s=each.target_itl_s if itl_s is None else itl_s,
        )


def asking_for(
    requests: Iterable[TracedRequest], max_tokens: int | None
) -> Iterator[TracedRequest]:
    """Yield the requests with at least so many tokens allowed, whatever their outputs have; None
    keeps what they ask for."""
    for each in requests:
        most = each.max_tokens if max_tokens is None else max(max_tokens, each.num_output_tokens)
        yield replace(each, max_tokens=most)


def sped_up(requests: Iterable[TracedRequest], times: float) -> list[TracedRequest]:
    """Return the requests, sent so many times faster after another."""
    return [replace(each, sent_s=each.sent_s / times) for each in requests]
