"""Input processing: a request whose prompts are tokens becomes a `RequestContext`.

What the client left out is filled in, and what needs the whole request is checked.
"""

from dataclasses import replace
from typing import NamedTuple

from quire.server.errors import RequestError
from quire.server.generation.context import Delivery, Prompt, RequestContext, TextOptions
from quire.server.generation.engine_requests import EngineRequestBuilder, NumLogprobs, random_seed
from quire.server.generation.output_limits import (
    OutputLimit,
    check_num_logprobs,
    check_priority,
    output_limit,
)
from quire.server.generation.parsed_input import PooledBuilder, TokenizedRequest
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.completions import CompletionRequest
from quire.server.generation.protocol.fields import GenerationFields
from quire.server.generation.protocol.tools import NamedTool
from quire.server.grammars.compose import ANYTHING
from quire.server.models.served_model import ServingState
from quire.server.sources import Sources
from quire.server.tenancy.tenants import Arrival


class InputProcessor(NamedTuple):
    """Processes the input of one request; `model` is the name that its answer carries."""

    model: str
    serving: ServingState
    sources: Sources
    arrival: Arrival

    def process(self, tokenized: TokenizedRequest, id_prefix: str) -> RequestContext:
        """Return the context of the request; the id of its answer begins with `id_prefix`. Raises
        RequestError."""
        try:
            if isinstance(tokenized.request, ChatRequest):
                return self._chat(tokenized.request, tokenized, id_prefix)
            if tokenized.pooled is not None:
                return self._pooled(tokenized.pooled, tokenized, id_prefix)
            assert isinstance(tokenized.request, CompletionRequest)
            return self._completion(tokenized.request, tokenized, id_prefix)
        except RequestError as error:
            raise tokenized.names.error(error) from None

    def _completion(
        self, request: CompletionRequest, tokenized: TokenizedRequest, id_prefix: str
    ) -> RequestContext:
        echo = bool(request.echo)
        limit = output_limit(request)
        echoed = request.logprobs if echo else None
        prompt = max((n for n in (echoed, request.prompt_logprobs) if n is not None), default=None)
        logprobs = NumLogprobs(request.logprobs, prompt)
        text_options = replace(
            _text_options(request),
            echo=echo,
            scores_echo=echoed is not None,
            drop_output=limit.drops_output,
        )
        return self._build(
            id_prefix, self._request_builder(request, limit, logprobs), tokenized, text_options
        )

    def _chat(
        self, request: ChatRequest, tokenized: TokenizedRequest, id_prefix: str
    ) -> RequestContext:
        logprobs = NumLogprobs(request.num_output_logprobs, request.prompt_logprobs)
        text_options = replace(
            _text_options(request),
            echo=bool(request.echo),
            parsing=tokenized.parsing,
            include_reasoning=request.include_reasoning is not False,
            old_calls=request.functions is not None,
            names_tool=isinstance(request.tool_choice, NamedTool),
            keeps_order=tokenized.keeps_order,
        )
        return self._build(
            id_prefix,
            self._request_builder(request, output_limit(request), logprobs),
            tokenized,
            text_options,
        )

    def _pooled(
        self, builder: PooledBuilder, tokenized: TokenizedRequest, id_prefix: str
    ) -> RequestContext:
        request, prompts = tokenized.request, tokenized.prompts
        check_priority(request.priority, self.serving.policy)
        answer_id = self._answer_id(id_prefix)
        return RequestContext(
            id=answer_id,
            arrival=self.arrival,
            created_s=int(self.sources.now()),
            model=self.model,
            prompts=prompts,
            num_choices=1,
            num_returned=1,
            requests=builder.build(answer_id, prompts, self.serving, self.arrival.tenant),
            text_options=TextOptions(),
            delivery=Delivery(),
            time_limit_s=_time_limit_s(request.deadline_ms),
            warnings=tokenized.warnings,
        )

    def _answer_id(self, prefix: str) -> str:
        return f"{prefix}-{self.sources.random_bytes(16).hex()}"

    def _request_builder(
        self, request: GenerationFields, limit: OutputLimit, logprobs: NumLogprobs
    ) -> EngineRequestBuilder:
        seed = self._seed(request)
        return EngineRequestBuilder(
            request, self.serving, limit, logprobs, seed, self.arrival.tenant
        )

    def _build(
        self,
        id_prefix: str,
        builder: EngineRequestBuilder,
        tokenized: TokenizedRequest,
        text_options: TextOptions,
    ) -> RequestContext:
        request, prompts = builder.request, tokenized.prompts
        check_priority(request.priority, self.serving.policy)
        completion_id = self._answer_id(id_prefix)
        grammar = tokenized.grammar or ANYTHING
        builder = replace(
            builder,
            grammar=grammar,
            thinking_budget=tokenized.thinking_budget,
            bad_words=tokenized.bad_words,
        )
        requests = builder.build(completion_id, prompts)
        keeps_output = text_options.logprobs and _is_answered_whole(request, text_options)
        sends_prompts = text_options.prompt_logprobs is not None
        check_num_logprobs(requests, keeps_output=keeps_output, sends_prompts=sends_prompts)
        options = request.stream_options
        return RequestContext(
            id=completion_id,
            arrival=self.arrival,
            created_s=int(self.sources.now()),
            model=self.model,
            prompts=prompts,
            num_choices=request.num_generated,
            num_returned=request.num_returned,
            requests=requests,
            text_options=text_options,
            delivery=Delivery(
                stream=bool(request.stream),
                include_usage=options is not None and bool(options.include_usage),
                continuous_usage=options is not None and bool(options.continuous_usage_stats),
            ),
            time_limit_s=_time_limit_s(request.deadline_ms),
            warnings=tokenized.warnings + grammar.warnings + self._doubled_bos(prompts),
        )

    def _seed(self, request: GenerationFields) -> int:
        if request.seed is not None:
            return request.seed
        return random_seed(self.sources.random_bytes(8))

    def _doubled_bos(self, prompts: tuple[Prompt, ...]) -> tuple[str, ...]:
        """Return a warning where every token of a prompt is allowed, but two beginnings are
        rare."""
        bos = self.serving.tokenizer.bos_token_id
        if bos is None or all(prompt.token_ids[:2] != (bos, bos) for prompt in prompts):
            return ()
        return ("the prompt begins with two beginning-of-sequence tokens",)


def _is_answered_whole(request: GenerationFields, text_options: TextOptions) -> bool:
    """Return whether all of an output is in memory at its end. The stream of a response ends with
    the whole of it."""
    is_whole = not request.stream or text_options.keeps_order
    return is_whole and not text_options.drop_output


def _time_limit_s(deadline_ms: float | None) -> float | None:
    return None if deadline_ms is None else deadline_ms / 1000


def _text_options(request: GenerationFields) -> TextOptions:
    return TextOptions(
        stop=tuple(request.stop or ()),
        include_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        skip_special_tokens=request.skip_special_tokens is not False,
        token_ids=bool(request.return_token_ids),
        logprobs=request.num_output_logprobs is not None,
        prompt_logprobs=request.prompt_logprobs,
        names_tokens=bool(request.return_tokens_as_token_ids),
    )
