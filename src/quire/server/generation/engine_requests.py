"""The engine requests of one HTTP request: one for each choice of each prompt, within the limits on
tokens and log probabilities of outputs."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.cache.sharing import SharingTerms
from quire.engine.messages import EngineFacts
from quire.scheduler.policy import PolicyName
from quire.scheduler.request import NewRequest, Pooling, Sampling, Stopping
from quire.server.errors import ContextLengths, ContextTooLong, RequestError
from quire.server.generation.checks import NO_TOKENS_LEFT, prompt_too_long
from quire.server.generation.context import Prompt
from quire.server.generation.input import OutputOptions
from quire.server.generation.parsed_input import PromptRequest, TokenizedRequest
from quire.server.grammars.compose import ANYTHING
from quire.server.models.served_model import ServingState
from quire.server.tenancy.latency_targets import LatencyTargets
from quire.server.tenancy.tenants import Tenant

MAX_LOGPROBS_KEPT = 2**22
"""Log probabilities that one answer may hold at once: some 100 MB of JSON."""
PROMPT_LOGPROB_WEIGHT = 3
"""One of `prompt_logprobs`, with its rank and text, takes as much JSON as so many others."""
ENDPOINTS: Mapping[str, str] = {
    "cmpl": "completions",
    "chatcmpl": "chat",
    "resp": "responses",
    "msg": "messages",
    "embd": "embeddings",
    "rerank": "rerank",
    "score": "score",
    "prefix": "prefixes",
}
"""Names of APIs, by what the ids of their answers begin with."""
_SEED_BITS = 63
_NO_OUTPUT = Stopping(max_tokens=0)


@dataclass(frozen=True, slots=True)
class EngineRequestBuilder:
    """Builds engine requests from a tokenised request and the defaults of the model.

    options: those of the request.
    seed: the client's, or a random one.
    """

    options: OutputOptions
    tokenized: TokenizedRequest
    serving: ServingState
    seed: int
    tenant: Tenant

    def build(self, completion_id: str) -> tuple[NewRequest, ...]:
        """Return the requests, prompt by prompt. Raises RequestError.

        The choices of a prompt have the same seeds whatever other prompts are beside it.
        """
        tokenized, grammar = self.tokenized, self.tokenized.grammar or ANYTHING
        sampling = replace(
            self.options.sampling(self.serving.defaults, self.serving.facts.vocab_size),
            num_logprobs=self._num_logprobs,
            grammar=grammar.text,
            reasoning_tags=grammar.reasoning_tags,
            thinking_budget=tokenized.thinking_budget,
            bad_words=tokenized.bad_words,
        )
        samplings = [
            replace(sampling, seed=choice_seed(self.seed, k))
            for k in range(self.options.num_generated)
        ]
        built: list[NewRequest] = []
        for prompt in tokenized.prompts:
            built += self._choices(f"{completion_id}-", len(built), prompt, samplings)
        return tuple(built)

    def _choices(
        self, prefix: str, first: int, prompt: Prompt, samplings: list[Sampling]
    ) -> Iterator[NewRequest]:
        """Yield the choices of one prompt. Those after the first fork from it, unless each must
        compute all of the prompt again to score it."""
        stopping = self._stopping(prompt)
        cache_salt, prompt_logprobs = self.options.cache_salt, self._num_prompt_logprobs
        sharing = sharing_terms(cache_salt, prompt.token_ids, self.serving, self.tenant)
        forks = prompt_logprobs is None
        ttft_s, itl_s = map(_seconds, self._targets)
        for index, sampling in enumerate(samplings):
            yield NewRequest(
                f"{prefix}{first + index}",
                prompt.token_ids,
                sampling,
                stopping,
                sharing,
                prompt_logprobs=prompt_logprobs,
                tenant=self.tenant.name,
                weight=self.tenant.weight,
                priority=self.options.priority or 0,
                fork_of=f"{prefix}{first}" if forks and index else None,
                reports_prefill=self.options.return_progress,
                target_ttft_s=ttft_s,
                target_itl_s=itl_s,
                session=self.options.session,
                endpoint=endpoint_of(prefix),
                retention_s=self.options.retention_s,
            )

    @property
    def _targets(self) -> LatencyTargets:
        """The targets of the request, else of its key, else of its priority, else of the server."""
        scheduling, priority = self.serving.scheduling, self.options.priority or 0
        targets = self.options.targets.or_else(self.tenant.targets)
        for each in scheduling.priority_targets:
            if each.priority == priority:
                targets = targets.or_else(LatencyTargets(each.ttft_ms, each.itl_ms))
        return targets.or_else(LatencyTargets(scheduling.target_ttft_ms, scheduling.target_itl_ms))

    @property
    def _num_logprobs(self) -> int | None:
        """The number that the engine is given: outputs that are ranked need those of their
        tokens."""
        options = self.options
        ranks = options.num_generated > options.num_returned
        return 0 if ranks and options.num_logprobs is None else options.num_logprobs

    @property
    def _num_prompt_logprobs(self) -> int | None:
        """The alternatives of each token of the prompt, which an echo shows as those of outputs."""
        echoed = self.options.num_logprobs if self.tokenized.text.scores_echo else None
        asked = (echoed, self.options.prompt_logprobs)
        return max((each for each in asked if each is not None), default=None)

    def _stopping(self, prompt: Prompt) -> Stopping:
        options, facts = self.options, self.serving.facts
        max_tokens = num_output_tokens(prompt, options, facts)
        if options.min_tokens > max_tokens:
            raise RequestError(
                f"'min_tokens' is {options.min_tokens}, but the output may have only {max_tokens}.",
                param="min_tokens",
            )
        return Stopping(
            max_tokens=max_tokens,
            min_tokens=options.min_tokens,
            eos_token_ids=() if options.ignore_eos else facts.eos_token_ids,
            stop_token_ids=options.stop_token_ids,
        )


def pooled_requests(
    request: PromptRequest,
    answer_id: str,
    pooled: Iterable[tuple[Prompt, Pooling]],
    serving: ServingState,
    tenant: Tenant,
) -> tuple[NewRequest, ...]:
    """Return a request for each prompt that ends with it and gives its pooled states, in their
    order."""
    return tuple(
        NewRequest(
            f"{answer_id}-{index}",
            prompt.token_ids,
            Sampling(),
            _NO_OUTPUT,
            sharing_terms(request.cache_salt, prompt.token_ids, serving, tenant),
            tenant=tenant.name,
            weight=tenant.weight,
            priority=request.priority or 0,
            pooling=pooling,
            endpoint=endpoint_of(answer_id),
        )
        for index, (prompt, pooling) in enumerate(pooled)
    )


def endpoint_of(answer_id: str) -> str:
    """Return the name of the API that an answer is of."""
    return ENDPOINTS[answer_id.partition("-")[0]]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def sharing_terms(
    cache_salt: str | None, token_ids: tuple[int, ...], serving: ServingState, tenant: Tenant
) -> SharingTerms:
    """Return with whom a request shares blocks: a client's own salt shares nothing beyond it."""
    is_private = cache_salt is not None
    num_public = 0 if is_private else serving.shared_prefixes.num_shared(token_ids)
    return SharingTerms(tenant.salt(cache_salt), num_public)


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of a choice: the first keeps `seed`, the others' are spread by a hash."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def random_seed(random_bytes: bytes) -> int:
    """Return a seed of 63 bits from 8 random bytes."""
    return int.from_bytes(random_bytes, "little") >> (64 - _SEED_BITS)


def check_num_logprobs(
    requests: Sequence[NewRequest], *, keeps_output: bool, sends_prompts: bool = False
) -> None:
    """Raise RequestError for more log probabilities than one answer may hold in memory.

    Those of a prompt are in memory at once, and so are those of outputs that are answered as one
    body (`keeps_output`). With `sends_prompts` those of prompts are sent as `prompt_logprobs`.
    """
    num_kept = 0
    weight = PROMPT_LOGPROB_WEIGHT if sends_prompts else 1
    for each in requests:
        if each.prompt_logprobs is not None:
            num_kept += weight * len(each.prompt_token_ids) * (1 + each.prompt_logprobs)
        if each.sampling.num_logprobs is not None and keeps_output:
            num_each = 1 + each.sampling.num_logprobs + len(each.sampling.logprob_token_ids)
            num_kept += each.stopping.max_tokens * num_each
    if num_kept > MAX_LOGPROBS_KEPT:
        remedy = ", or for a stream" if keeps_output else ""
        field = "prompt_logprobs" if sends_prompts else "logprobs"
        raise RequestError(
            f"{len(requests)} outputs with '{field}' may have {num_kept} log probabilities"
            f"{f' (those of prompts count {weight} times)' if sends_prompts else ''}, "
            f"more than the {MAX_LOGPROBS_KEPT} of one answer: ask for fewer outputs, tokens or "
            f"log probabilities at once{remedy}.",
            param=field,
        )


def check_priority(priority: int | None, policy: PolicyName) -> None:
    """Raise RequestError for a priority that the policy of this server would ignore."""
    if priority and policy is not PolicyName.PRIORITY:
        raise RequestError(
            f"'priority' is {priority}, but this server serves by {policy}: only "
            "--scheduling-policy priority looks at it.",
            param="priority",
        )


def num_output_tokens(prompt: Prompt, options: OutputOptions, facts: EngineFacts) -> int:
    """Return how many tokens the output may have. Raises RequestError with all the numbers."""
    most, num_prompt = facts.max_model_len, len(prompt.token_ids)
    available = most - num_prompt
    if available < 1:
        why = NO_TOKENS_LEFT
        if options.drops_output:
            why = (
                f"a prompt without an output may have at most {most - 1}, since the engine draws "
                "one token after it, which is thrown away"
            )
        raise prompt_too_long(num_prompt, prompt.field, most, why)
    if options.max_tokens is None:
        return _default_tokens(num_prompt, available, options, facts)
    # The engine samples at least one token: an output of none is one that is thrown away.
    requested = max(options.max_tokens, 1)
    if options.cuts_max_tokens:
        return min(requested, _num_that_fit(num_prompt, available, facts))
    if requested > available:
        raise ContextTooLong(
            f"The model's context is {most} tokens; '{prompt.field}' has {num_prompt} and the "
            f"output is asked to have up to {requested}: {requested - available} too many.",
            param=options.path("max_tokens"),
            lengths=ContextLengths(most, num_prompt),
        )
    return requested


def _default_tokens(
    num_prompt: int, available: int, options: OutputOptions, facts: EngineFacts
) -> int:
    """Return the default, or all that the context and the KV memory hold of one request."""
    if options.default_max_tokens is not None:
        return min(options.default_max_tokens, available)
    return _num_that_fit(num_prompt, available, facts)


def _num_that_fit(num_prompt: int, available: int, facts: EngineFacts) -> int:
    """Return the output tokens that the context and the KV memory hold beside a prompt."""
    return max(min(available, facts.memory.max_model_len_fits - num_prompt), 1)
