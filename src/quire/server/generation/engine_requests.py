"""The engine requests of one HTTP request: one for each choice of each prompt."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quire.cache.sharing import SharingTerms
from quire.scheduler.request import NewRequest, Pooling, Sampling, Stopping, ThinkingBudget
from quire.server.errors import RequestError
from quire.server.generation.context import Prompt
from quire.server.generation.output_limits import OutputLimit, num_output_tokens
from quire.server.generation.parsed_input import PromptRequest
from quire.server.generation.protocol.fields import GenerationFields
from quire.server.grammars.compose import ANYTHING, Grammar
from quire.server.models.served_model import ServingState
from quire.server.tenancy.tenants import Tenant

_SEED_BITS = 63
_NO_OUTPUT = Stopping(max_tokens=0)


@dataclass(frozen=True, slots=True)
class NumLogprobs:
    """The numbers of alternatives that each token of output and prompt gets; None: no log
    probabilities."""

    output: int | None = None
    prompt: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRequestBuilder:
    """Builds engine requests from the fields of an HTTP request and the defaults of the model.

    `seed` is the client's, or a random one; `grammar` is what the outputs must be of, and
    `thinking_budget` limits their reasoning, if anything does. `bad_words` are in tokens.
    """

    request: GenerationFields
    serving: ServingState
    limit: OutputLimit
    logprobs: NumLogprobs
    seed: int
    tenant: Tenant
    grammar: Grammar = ANYTHING
    thinking_budget: ThinkingBudget | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()

    def build(self, completion_id: str, prompts: tuple[Prompt, ...]) -> tuple[NewRequest, ...]:
        """Return the requests, prompt by prompt. Raises RequestError.

        The choices of a prompt have the same seeds whatever other prompts are beside it.
        """
        sampling = replace(
            self.request.sampling(self.serving.defaults, self.serving.facts.vocab_size),
            num_logprobs=self._num_logprobs,
            grammar=self.grammar.text,
            reasoning_tags=self.grammar.reasoning_tags,
            thinking_budget=self.thinking_budget,
            bad_words=self.bad_words,
        )
        samplings = [
            replace(sampling, seed=choice_seed(self.seed, k))
            for k in range(self.request.num_generated)
        ]
        built: list[NewRequest] = []
        for prompt in prompts:
            built += self._choices(f"{completion_id}-", len(built), prompt, samplings)
        return tuple(built)

    def _choices(
        self, prefix: str, first: int, prompt: Prompt, samplings: list[Sampling]
    ) -> Iterator[NewRequest]:
        """Yield the choices of one prompt. Those after the first fork from it, unless each must
        compute all of the prompt again to score it."""
        stopping = self._stopping(prompt)
        cache_salt = self.request.cache_salt
        sharing = sharing_terms(cache_salt, prompt.token_ids, self.serving, self.tenant)
        forks = self.logprobs.prompt is None
        for index, sampling in enumerate(samplings):
            yield NewRequest(
                f"{prefix}{first + index}",
                prompt.token_ids,
                sampling,
                stopping,
                sharing,
                prompt_logprobs=self.logprobs.prompt,
                tenant=self.tenant.name,
                weight=self.tenant.weight,
                priority=self.request.priority or 0,
                fork_of=f"{prefix}{first}" if forks and index else None,
                reports_prefill=bool(self.request.return_progress),
            )

    @property
    def _num_logprobs(self) -> int | None:
        """The number that the engine is given: outputs that are ranked need those of their
        tokens."""
        ranks = self.request.num_generated > self.request.num_returned
        return 0 if ranks and self.logprobs.output is None else self.logprobs.output

    def _stopping(self, prompt: Prompt) -> Stopping:
        request = self.request
        max_tokens = num_output_tokens(prompt, self.limit, self.serving.facts)
        min_tokens = request.min_tokens or 0
        if min_tokens > max_tokens:
            raise RequestError(
                f"'min_tokens' is {min_tokens}, but the output may have only {max_tokens}.",
                param="min_tokens",
            )
        return Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            eos_token_ids=() if request.ignore_eos else self.serving.facts.eos_token_ids,
            stop_token_ids=tuple(request.stop_token_ids or ()),
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
