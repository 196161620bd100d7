"""Input processing: a request whose prompts are tokens becomes a `RequestContext`.

Defaults fill in what the client left out, and checks that need the whole request follow.
"""

from dataclasses import replace
from typing import NamedTuple

from quire.server.generation.context import Delivery, Prompt, RequestContext, TextOptions
from quire.server.generation.engine_requests import (
    EngineRequestBuilder,
    check_num_logprobs,
    check_priority,
    random_seed,
)
from quire.server.generation.input import OutputOptions
from quire.server.generation.parsed_input import PooledBuilder, TokenizedRequest
from quire.server.grammars.compose import ANYTHING
from quire.server.models.served_model import ServingState
from quire.server.sources import Sources
from quire.server.tenancy.tenants import IncomingRequest


class InputProcessor(NamedTuple):
    """Processes the input of one request; `model` is the name that its answer carries."""

    model: str
    serving: ServingState
    sources: Sources
    arrival: IncomingRequest

    def process(
        self, tokenized: TokenizedRequest, id_prefix: str, *, names_session: bool = False
    ) -> RequestContext:
        """Return the context of the request; the id of its answer begins with `id_prefix`. With
        `names_session` that id names the conversation, unless it has a name. Raises
        RequestError."""
        check_priority(tokenized.request.priority, self.serving.scheduling.scheduling_policy)
        answer_id = f"{id_prefix}-{self.sources.random_bytes(16).hex()}"
        if tokenized.pooled is not None:
            return self._pooled(tokenized.pooled, tokenized, answer_id)
        options = tokenized.request
        assert isinstance(options, OutputOptions)
        session = options.session or (answer_id if names_session else "")
        if self.arrival.in_batch:
            session = ""
        if session != options.session:
            options = replace(options, session=session)
        return self._generated(options, tokenized, answer_id)

    def _pooled(
        self, builder: PooledBuilder, tokenized: TokenizedRequest, answer_id: str
    ) -> RequestContext:
        prompts = tokenized.prompts
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
            time_limit_s=_time_limit_s(tokenized.request.deadline_ms),
            warnings=tokenized.warnings,
            ignored=tokenized.ignored,
        )

    def _generated(
        self, options: OutputOptions, tokenized: TokenizedRequest, answer_id: str
    ) -> RequestContext:
        prompts, grammar = tokenized.prompts, tokenized.grammar or ANYTHING
        text = replace(tokenized.text, promises=grammar.promises)
        builder = EngineRequestBuilder(
            options, tokenized, self.serving, self._seed(options), self.arrival.tenant
        )
        requests = builder.build(answer_id)
        keeps_output = text.logprobs and _is_answered_whole(options, text)
        sends_prompts = text.prompt_logprobs is not None
        check_num_logprobs(requests, keeps_output=keeps_output, sends_prompts=sends_prompts)
        num_most = min(request.stopping.max_tokens for request in requests)
        is_cut = options.cuts_max_tokens and num_most < (options.max_tokens or 0)
        warnings = tokenized.warnings + grammar.warnings
        if is_cut:
            field = options.path("max_tokens")
            warnings += (f"{field} is {options.max_tokens}, and the context has {num_most} left",)
        return RequestContext(
            id=answer_id,
            arrival=self.arrival,
            created_s=int(self.sources.now()),
            model=self.model,
            prompts=prompts,
            num_choices=options.num_generated,
            num_returned=options.num_returned,
            requests=requests,
            text_options=text,
            delivery=Delivery(options.stream, options.include_usage, options.continuous_usage),
            time_limit_s=_time_limit_s(options.deadline_ms),
            warnings=warnings + self._doubled_bos(prompts),
            is_cut=is_cut,
            ignored=tokenized.ignored + grammar.loosened,
            notes_turns=tokenized.uses_tools and not self.arrival.in_batch,
        )

    def _seed(self, options: OutputOptions) -> int:
        if options.seed is not None:
            return options.seed
        return random_seed(self.sources.random_bytes(8))

    def _doubled_bos(self, prompts: tuple[Prompt, ...]) -> tuple[str, ...]:
        """Return a warning where every token of a prompt is allowed, but two beginnings are
        rare."""
        bos = self.serving.tokenizer.bos_token_id
        if bos is None or all(prompt.token_ids[:2] != (bos, bos) for prompt in prompts):
            return ()
        return ("the prompt begins with two beginning-of-sequence tokens",)


def _is_answered_whole(options: OutputOptions, text: TextOptions) -> bool:
    """Return whether all of an output is in memory at its end. The stream of a response ends with
    the whole of it."""
    is_whole = not options.stream or text.keeps_order
    return is_whole and not text.drop_output


def _time_limit_s(deadline_ms: float | None) -> float | None:
    return None if deadline_ms is None else deadline_ms / 1000
