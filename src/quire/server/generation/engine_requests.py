"""The engine requests of one HTTP request: one for each choice of each prompt."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quire.cache.sharing import SharingTerms
from quire.scheduler.request import NewRequest, Pooling, Sampling, Stopping
from quire.server.errors import RequestError
from quire.server.generation.context import Prompt
from quire.server.generation.input import OutputOptions
from quire.server.generation.output_limits import num_output_tokens
from quire.server.generation.parsed_input import PromptRequest, TokenizedRequest
from quire.server.grammars.compose import ANYTHING
from quire.server.models.served_model import ServingState
from quire.server.tenancy.tenants import Tenant

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
            )

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
        )
        for index, (prompt, pooling) in enumerate(pooled)
    )


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
