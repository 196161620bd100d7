"""Answers that show prompts: of `/render` those that a request would run with, its limits and its
sampling, with all that the client left out; of `/tokenize` the tokens of a text."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from quire.server.apis.openai.wire import (
    Rendered,
    RenderedPrompt,
    RenderedSampling,
    Tokenized,
)
from quire.server.generation.context import Prompt
from quire.server.generation.output_limits import num_output_tokens, output_limit
from quire.server.generation.prompts import decode_tokens
from quire.server.generation.protocol.fields import GenerationFields
from quire.server.models.input_context import InputContext


def tokenized(
    token_ids: tuple[int, ...], wants_strs: bool | None, context: InputContext
) -> Tokenized:
    """Return the tokens of a text, with what each stands for if it is wanted."""
    strs: tuple[str, ...] | UnsetType = UNSET
    if wants_strs:
        of = context.tokenizer.token_bytes.of
        strs = tuple(of(token_id).decode(errors="replace") for token_id in token_ids)
    return Tokenized(len(token_ids), context.facts.max_model_len, token_ids, strs)


def rendered(
    request: GenerationFields, prompts: Sequence[Prompt], context: InputContext
) -> Rendered:
    """Return what a request would run with. Raises RequestError for a limit that cannot be kept."""
    limit = output_limit(request)
    shown = tuple(
        RenderedPrompt(
            decode_tokens(prompt.token_ids, context),
            prompt.token_ids,
            len(prompt.token_ids),
            0 if limit.drops_output else num_output_tokens(prompt, limit, context.facts),
        )
        for prompt in prompts
    )
    model = request.model or context.limits.model_names[0]
    return Rendered(model, context.facts.max_model_len, shown, _sampling(request, context))


def _sampling(request: GenerationFields, context: InputContext) -> RenderedSampling:
    facts = context.facts
    sampling = request.sampling(context.limits.defaults, facts.vocab_size)
    return RenderedSampling(
        n=request.num_returned,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        seed=request.seed,
        min_tokens=request.min_tokens or 0,
        stop=tuple(request.stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        eos_token_ids=() if request.ignore_eos else facts.eos_token_ids,
    )
