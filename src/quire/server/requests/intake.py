"""From a request whose prompts are tokens to a Job: what is absent filled in, limits checked."""

from dataclasses import replace
from typing import NamedTuple

from quire.server.openai.protocol.chat import ChatRequest
from quire.server.openai.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from quire.server.openai.protocol.fields import GenerationFields
from quire.server.requests.engine_requests import Logprobs, RequestMaker, random_seed
from quire.server.requests.job import Delivery, Job, Prompt, TextPlan
from quire.server.requests.limits import OutputLimit, check_num_logprobs, check_priority
from quire.server.requests.read_input import Prompted
from quire.server.service import Sources, Tools
from quire.server.tenancy.tenants import Arrival


class Intake(NamedTuple):
    """What a request meets on its way in; `model` is the name it is answered under."""

    model: str
    tools: Tools
    sources: Sources
    arrival: Arrival

    def job(self, given: Prompted) -> Job:
        """Raises RequestError."""
        if isinstance(given.request, ChatRequest):
            return self._chat(given.request, given)
        return self._completion(given.request, given)

    def _completion(self, request: CompletionRequest, given: Prompted) -> Job:
        echo = bool(request.echo)
        # The engine draws at least one token: an output of none is one that is thrown away.
        drop_output = request.max_tokens == 0
        limit = OutputLimit(
            1 if drop_output else _asked(request),
            DEFAULT_MAX_TOKENS,
            _asked_field(request),
            drop_output,
        )
        logprobs = Logprobs(request.logprobs, request.logprobs if echo else None)
        text = replace(
            _text_plan(request),
            echo=echo,
            drop_output=drop_output,
            logprobs=request.logprobs is not None,
        )
        return self._job("cmpl", self._maker(request, limit, logprobs), given, text)

    def _chat(self, request: ChatRequest, given: Prompted) -> Job:
        limit = OutputLimit(_asked(request), None, _asked_field(request))
        logprobs = Logprobs((request.top_logprobs or 0) if request.logprobs else None)
        text = replace(_text_plan(request), logprobs=bool(request.logprobs))
        return self._job("chatcmpl", self._maker(request, limit, logprobs), given, text)

    def _maker(
        self, request: GenerationFields, limit: OutputLimit, logprobs: Logprobs
    ) -> RequestMaker:
        seed = self._seed(request)
        return RequestMaker(request, self.tools, limit, logprobs, seed, self.arrival.tenant)

    def _job(
        self,
        prefix: str,
        maker: RequestMaker,
        given: Prompted,
        text: TextPlan,
    ) -> Job:
        asked, prompts = maker.request, given.prompts
        check_priority(asked, self.tools.policy)
        job_id = f"{prefix}-{self.sources.random_bytes(16).hex()}"
        requests = maker.make(job_id, prompts)
        keeps_output = text.logprobs and not text.drop_output and not asked.stream
        check_num_logprobs(requests, keeps_output=keeps_output)
        options = asked.stream_options
        return Job(
            id=job_id,
            arrival=self.arrival,
            created_s=int(self.sources.now()),
            model=self.model,
            prompts=prompts,
            num_choices=asked.num_drawn,
            num_shown=asked.num_shown,
            requests=requests,
            text=text,
            delivery=Delivery(
                stream=bool(asked.stream),
                include_usage=options is not None and bool(options.include_usage),
                continuous_usage=options is not None and bool(options.continuous_usage_stats),
            ),
            time_limit_s=None if asked.deadline_ms is None else asked.deadline_ms / 1000,
            warnings=given.warnings + self._doubled_bos(prompts),
        )

    def _seed(self, request: GenerationFields) -> int:
        if request.seed is not None:
            return request.seed
        return random_seed(self.sources.random_bytes(8))

    def _doubled_bos(self, prompts: tuple[Prompt, ...]) -> tuple[str, ...]:
        """Tokens are the client's business, but two beginnings are rarely meant."""
        bos = self.tools.tokenizer.bos_token_id
        if bos is None or all(prompt.token_ids[:2] != (bos, bos) for prompt in prompts):
            return ()
        return ("the prompt begins with two beginning-of-sequence tokens",)


def _asked(request: GenerationFields) -> int | None:
    newer = request.max_completion_tokens
    return request.max_tokens if newer is None else newer


def _asked_field(request: GenerationFields) -> str:
    return "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"


def _text_plan(request: GenerationFields) -> TextPlan:
    return TextPlan(
        stop=tuple(request.stop or ()),
        include_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        skip_special_tokens=request.skip_special_tokens is not False,
        token_ids=bool(request.return_token_ids),
    )
