"""From a request model to a Job: prompts as tokens, limits checked, what is absent filled in."""

from dataclasses import replace
from typing import NamedTuple

from quire.server.engine_requests import Logprobs, RequestMaker, random_seed
from quire.server.job import Delivery, Job, Prompt, TextPlan
from quire.server.limits import (
    OutputLimit,
    check_chat,
    check_completion,
    check_num_outputs,
    check_num_scored,
    check_priority,
    check_shared,
)
from quire.server.prompts import read_chat, read_prompts, unread_kwargs
from quire.server.protocol.chat import ChatRequest
from quire.server.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from quire.server.protocol.fields import GenerationFields
from quire.server.service import Sources, Tools
from quire.server.tenants import Arrival


class Intake(NamedTuple):
    """What a request meets on its way in; `model` is the name it is answered under."""

    model: str
    tools: Tools
    sources: Sources
    arrival: Arrival

    async def completion(self, request: CompletionRequest, no_effect: tuple[str, ...]) -> Job:
        check_shared(request, self.tools.facts.vocab_size)
        check_completion(request)
        prompts = await read_prompts(request, self.tools)
        echo = bool(request.echo)
        # The engine draws at least one token: an output of none is one that is thrown away.
        drop_output = request.max_tokens == 0
        maker = RequestMaker(
            request,
            self.tools,
            OutputLimit(
                1 if drop_output else _asked(request),
                DEFAULT_MAX_TOKENS,
                _asked_field(request),
                drop_output,
            ),
            Logprobs(request.logprobs, request.logprobs if echo else None),
            self._seed(request),
            self.arrival.tenant,
        )
        text = replace(
            _text_plan(request),
            echo=echo,
            drop_output=drop_output,
            logprobs=request.logprobs is not None,
        )
        warnings = _no_effect_warnings(no_effect) + self._doubled_bos(prompts)
        return self._job("cmpl", maker, prompts, text, warnings)

    async def chat(self, request: ChatRequest, no_effect: tuple[str, ...]) -> Job:
        check_shared(request, self.tools.facts.vocab_size)
        check_chat(request)
        prompts = (await read_chat(request, self.tools),)
        top_logprobs = request.top_logprobs or 0
        maker = RequestMaker(
            request,
            self.tools,
            OutputLimit(_asked(request), None, _asked_field(request)),
            Logprobs(top_logprobs if request.logprobs else None),
            self._seed(request),
            self.arrival.tenant,
        )
        text = replace(_text_plan(request), logprobs=bool(request.logprobs))
        warnings = (
            _no_effect_warnings(no_effect)
            + unread_kwargs(request, self.tools)
            + self._doubled_bos(prompts)
        )
        return self._job("chatcmpl", maker, prompts, text, warnings)

    def _job(
        self,
        prefix: str,
        maker: RequestMaker,
        prompts: tuple[Prompt, ...],
        text: TextPlan,
        warnings: tuple[str, ...],
    ) -> Job:
        asked = maker.request
        check_num_outputs(len(prompts), asked, self.tools.max_outputs)
        check_priority(asked, self.tools.policy)
        job_id = f"{prefix}-{self.sources.random_bytes(16).hex()}"
        requests = maker.make(job_id, prompts)
        check_num_scored(requests)
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
            warnings=warnings,
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


def _no_effect_warnings(fields: tuple[str, ...]) -> tuple[str, ...]:
    return (f"accepted without effect: {', '.join(fields)}",) if fields else ()


def _text_plan(request: GenerationFields) -> TextPlan:
    return TextPlan(
        stop=tuple(request.stop or ()),
        include_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        skip_special_tokens=request.skip_special_tokens is not False,
        token_ids=bool(request.return_token_ids),
    )
