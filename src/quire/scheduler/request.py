"""A request has two parts: the frozen part that crosses packages, and the live part that only the
scheduler edits.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from quire.cache.block_table import BlockTable
from quire.cache.sharing import OPEN, SharingTerms
from quire.scheduler.reasons import LoadSource, Reason
from quire.scheduler.sessions.session import KnownSession
from quire.scheduler.usage.ledger import GeneratedTokens

SortKey: TypeAlias = tuple[float, int]
"""The order of requests, smallest first; the number breaks ties."""


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """The tokens that an output may spend on reasoning before the closing tag is forced.

    `max_tokens` counts what stands between the tags, in all the reasoning of the output; with 0 the
    tag is closed as soon as it is open. `opens` and `closes` are the token ids of the tags, one or
    more each; `is_open` says that the prompt ends within the reasoning.
    """

    max_tokens: int
    opens: tuple[int, ...]
    closes: tuple[int, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around the reasoning that a grammar allows before an answer: any text up to the
    first `closes`. `opens` begins it, and no answer; it is empty where the prompt has begun it."""

    opens: str
    closes: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters by which the next token is sampled. Token ids are of the model's vocabulary.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1 and the other
    penalties 0 are off. `seed` is any 64-bit number: the noise of a token is a pure function of
    (seed, position). With `num_logprobs` None no log probabilities are returned, with 0 the sampled
    token's, with n also those of the n likeliest; `logprob_token_ids` are scored beside these.
    `grammar`, serialised for llguidance, is what the output must be of; empty for any output. Where
    it begins with a reasoning, `reasoning_tags` say so, so that its masks need not be computed.
    Without a `thinking_budget` the model reasons as long as it likes. `allowed_token_ids` are all
    that may be sampled, any if empty; `bad_words` are sequences, of one token or more, that the
    output never holds.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    num_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    grammar: str = ""
    reasoning_tags: ReasoningTags | None = None
    thinking_budget: ThinkingBudget | None = None


class PoolingKind(StrEnum):
    """The tokens of a prompt whose states become its vector: the last, all in equal parts, or the
    first."""

    LAST = "last"
    MEAN = "mean"
    CLS = "cls"


@dataclass(frozen=True, slots=True)
class Pooling:
    """The way in which states of a prompt, which the model's head would read, become one vector.

    Of the pooled state the first `num_dimensions` elements are kept, all if that is None; with
    `is_normalized` these are divided by their Euclidean length.
    The tokens from `second_text` on are those of the second of two texts, for models that tell
    them apart.
    """

    kind: PoolingKind
    num_dimensions: int | None = None
    is_normalized: bool = True
    second_text: int | None = None

    @property
    def needs_all_states(self) -> bool:
        """Whether the states of all tokens of the prompt are part of the vector."""
        return self.kind is not PoolingKind.LAST


@dataclass(frozen=True, slots=True)
class Stopping:
    """The token ids and counts by which a request ends. With `max_tokens` 0 it ends with its
    prompt. `eos_token_ids` is empty where end-of-sequence is ignored.
    """

    max_tokens: int
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as it is handed over: tokens and numbers, never text.

    `sharing` says with whom it shares blocks. `prompt_logprobs` None is off; n asks for each prompt
    token's log probability and the n likeliest. With `pooling`, which goes with `max_tokens` 0, it
    ends with a vector. `tenant` and `weight` (above 0) say who is served,
    and with what share, under the fair policy. Less `priority` is sooner. It must have ended
    `time_limit_s` seconds after it is added. `fork_of` is another request with the same prompt and
    sharing, whose blocks it takes over. With `reports_prefill` its deltas say how far its prompt is
    computed. With `pins_prompt`, which goes with `max_tokens` 0, the full blocks of its prompt stay
    in the prefix cache, under its id, until they are unpinned. Its first token should come within
    `target_ttft_s` seconds, and each later one within `target_itl_s` of the one before.
    Requests of one tenant and `session`, a name that their client gives or "", may be turns of one
    conversation; `endpoint` names the API that they came by. For `retention_s` seconds after its
    end what is cached of its prompt is evicted only behind what nobody asked to keep.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    sharing: SharingTerms = OPEN
    prompt_logprobs: int | None = None
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    time_limit_s: float | None = None
    fork_of: str | None = None
    reports_prefill: bool = False
    pooling: Pooling | None = None
    pins_prompt: bool = False
    target_ttft_s: float | None = None
    target_itl_s: float | None = None
    session: str = ""
    endpoint: str = ""
    retention_s: float | None = None

    @property
    def needs_all_rows(self) -> bool:
        """Whether the model's rows of all tokens of the prompt are part of the result, so that none
        may be left out because its keys and values are known."""
        return self.prompt_logprobs is not None or (
            self.pooling is not None and self.pooling.needs_all_states
        )


class TokenLogprobs(NamedTuple):
    """Natural-log probabilities of the model itself, before temperature and penalties: the token's,
    and in `top` those of the likeliest tokens by id. `rank` is the token's, 1 for the likeliest; 0
    where it was not counted, as of outputs.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int = 0


class Event(NamedTuple):
    """One entry of a request's timeline: when, what happened, the number that explains it, and the
    id of another request if one had a part in it.
    """

    time_s: float
    reason: Reason
    number: int
    other: str = ""


@dataclass(frozen=True, slots=True)
class ResumedOutput:
    """The part of an output that was handed out before the engine that computed it ended: another
    engine goes on behind it.

    `output_token_ids` follow the prompt. `num_scored` prompt tokens have had their log
    probabilities handed out, the first counted. `timeline` has the events so far, in seconds of the
    clock that all engines of a machine share; the first says when the request was queued.
    """

    output_token_ids: tuple[int, ...] = ()
    num_scored: int = 1
    timeline: tuple[Event, ...] = ()


class Outlook(NamedTuple):
    """The expectation of a waiting request: `outputs_s` seconds of the machine for its output, and
    `num_found` tokens of its prompt that need not be computed. It `is_near` once it was among the
    first of the queue."""

    outputs_s: float
    num_found: int
    is_near: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """A live request, edited by the scheduler alone.

    `num_computed` counts the tokens that steps were scheduled to compute so far, `num_pending` the
    sampled ones whose step has not come back. It was preempted `num_preemptions` times, and
    `num_earlier_preemptions` times in engines that have ended. `admitted_step` is the first step
    since it was last admitted: it tells a late result of an earlier admission apart.
    For more urgent requests it was preempted `num_urgent` times.
    `num_discarded` tokens were computed before the last preemption. `num_scored` prompt tokens have
    had their log probabilities handed out; the first never gets one. `priority_key` orders the
    waiting requests of its `tenant`, `running_order` the running ones. Its `outlook` is part of the
    first where the shortest go first, and it counts as having come `lead_s` earlier than it did.
    While it is not `is_ready`, or is `loading_from` a slower store, it waits and holds nobody;
    `num_loaded` tokens were loaded for it, `num_from_peers` of them from other engines.
    It `is_late` once its first token will come after its target: it lets others by while it waits,
    and while its prompt is computed. It `is_held` while it waits rather than take what is kept for
    sessions. Where it has a target, `last_gap_s` passed
    between its last two tokens, and `num_late_tokens` of those after the first came too late.
    At the head of the queue it was skipped `num_skips` times. `num_charged` prompt tokens are on
    its tenant's account. The step `prompt_step` computes the last of its prompt. All requests share
    one `journal` of what is new in their timelines, and those of one payer what they have
    `generated`. A turn of a conversation has its `session`.
    """

    new: NewRequest
    table: BlockTable
    token_ids: list[int]
    tenant: str
    priority_key: SortKey
    running_order: SortKey = (0.0, 0)
    outlook: Outlook | None = None
    lead_s: float = 0.0
    is_ready: bool = True
    loading_from: LoadSource | None = None
    num_loaded: int = 0
    num_from_peers: int = 0
    num_computed: int = 0
    num_pending: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    num_earlier_preemptions: int = 0
    num_urgent: int = 0
    num_discarded: int = 0
    num_scored: int = 1
    num_skips: int = 0
    is_late: bool = False
    is_held: bool = False
    num_charged: int = 0
    admitted_step: int = 0
    arrived_s: float = 0.0
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    last_gap_s: float | None = None
    num_late_tokens: int = 0
    prompt_step: int | None = None
    timeline: list[Event] = field(default_factory=list)
    journal: list[tuple[str, Event]] = field(default_factory=list)
    generated: GeneratedTokens = field(default_factory=GeneratedTokens)
    session: KnownSession | None = None

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.new.prompt_token_ids)

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - len(self.new.prompt_token_ids)

    @property
    def num_left(self) -> int:
        """The known tokens, and those being sampled, that no step has computed yet."""
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def is_in_prompt(self) -> bool:
        """Whether steps have yet to compute more than the token behind which the next is sampled:
        tokens of its prompt, or those that a preemption has thrown away."""
        num_known = len(self.token_ids) + self.num_pending
        return num_known - self.num_computed > 1 or num_known == len(self.new.prompt_token_ids)

    @property
    def lets_others_by(self) -> bool:
        """Whether steps compute its prompt behind those of others, since it is late anyway."""
        return self.is_late and self.is_in_prompt

    @property
    def samples_none(self) -> bool:
        """Whether the request ends with its prompt."""
        return self.new.stopping.max_tokens == 0

    @property
    def needs_rows(self) -> bool:
        """Whether rows of its prompt are needed together, or some still to be scored."""
        is_scored = self.num_scored >= self.num_prompt_tokens
        return self.new.needs_all_rows and (self.samples_none or not is_scored)

    def put_back(self) -> None:
        """Forget what was computed, for a preemption; the outputs stay."""
        self.num_discarded = self.num_computed
        self.num_computed = 0
        self.num_pending = 0
        self.is_late = False
        self.prompt_step = None
        self.num_preemptions += 1

    def take_scores(
        self, start: int, scores: tuple[TokenLogprobs, ...]
    ) -> tuple[TokenLogprobs, ...]:
        """Return those of the scores of tokens `start + 1 ...` that were not handed out before a
        preemption.
        """
        fresh = scores[max(self.num_scored - start - 1, 0) :]
        self.num_scored += len(fresh)
        return fresh

    def note(self, now: float, reason: Reason, number: int = 0, other: str = "") -> None:
        """Append to the timeline; a continuing state is written once."""
        if self.timeline and self.timeline[-1].reason is reason and reason.lasts:
            return
        event = Event(now, reason, number, other)
        self.timeline.append(event)
        self.journal.append((self.id, event))
