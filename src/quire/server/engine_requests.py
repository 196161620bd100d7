"""A job's requests to the engine: one for each choice of each prompt."""

import hashlib
from dataclasses import dataclass

from quire.cache.reuse import Reuse
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.server.errors import RequestError
from quire.server.job import Prompt
from quire.server.limits import OutputLimit, num_output_tokens
from quire.server.protocol.fields import GenerationFields
from quire.server.service import Tools

_SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How many of the likeliest tokens are told: of the output, of the prompt; None for none."""

    output: int | None = None
    prompt: int | None = None


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """`seed` is the client's, or a random one. `tools` hold the model's facts and defaults."""

    request: GenerationFields
    tools: Tools
    limit: OutputLimit
    logprobs: Logprobs
    seed: int

    def make(self, job_id: str, prompts: tuple[Prompt, ...]) -> tuple[NewRequest, ...]:
        """Each prompt's choices draw the same numbers whatever other prompts are beside it."""
        num_choices = self.request.n or 1
        samplings = [self._sampling(choice_seed(self.seed, k)) for k in range(num_choices)]
        reuse = Reuse(salt=(self.request.cache_salt or "").encode())
        made: list[NewRequest] = []
        for prompt in prompts:
            stopping = self._stopping(len(prompt.token_ids))
            for sampling in samplings:
                made.append(
                    NewRequest(
                        f"{job_id}-{len(made)}",
                        prompt.token_ids,
                        sampling,
                        stopping,
                        reuse,
                        self.logprobs.prompt,
                    )
                )
        return tuple(made)

    def _sampling(self, seed: int) -> Sampling:
        request = self.request
        defaults = self.tools.defaults
        top_k = _first(request.top_k, defaults.top_k, 0)
        bias = request.logit_bias or {}
        return Sampling(
            temperature=_first(request.temperature, defaults.temperature, 1.0),
            top_k=max(0, min(int(top_k), self.tools.facts.vocab_size)),
            top_p=_first(request.top_p, defaults.top_p, 1.0),
            min_p=_first(request.min_p, defaults.min_p, 0.0),
            repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty, 1.0),
            frequency_penalty=_first(request.frequency_penalty, None, 0.0),
            presence_penalty=_first(request.presence_penalty, None, 0.0),
            logit_bias=tuple((int(key), float(value)) for key, value in bias.items()),
            seed=seed,
            num_logprobs=self.logprobs.output,
        )

    def _stopping(self, num_prompt: int) -> Stopping:
        request = self.request
        max_tokens = num_output_tokens(num_prompt, self.limit, self.tools.facts)
        min_tokens = request.min_tokens or 0
        if min_tokens > max_tokens:
            raise RequestError(
                f"'min_tokens' is {min_tokens}, but the output may have only {max_tokens}.",
                param="min_tokens",
            )
        return Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            eos_token_ids=() if request.ignore_eos else self.tools.facts.eos_token_ids,
            stop_token_ids=tuple(request.stop_token_ids or ()),
        )


def choice_seed(seed: int, index: int) -> int:
    """The first choice keeps the seed; the others' seeds are spread by a hash."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def random_seed(random_bytes: bytes) -> int:
    return int.from_bytes(random_bytes, "little") >> (64 - _SEED_BITS)


def _first(asked: float | None, of_model: float | None, otherwise: float) -> float:
    """What the client said, else what the model's own file says, else OpenAI's default."""
    if asked is not None:
        return float(asked)
    return otherwise if of_model is None else float(of_model)
