"""Answers that show prompts: of `/render` those that a request would run with, its limits and its
sampling, with all that the client left out; of `/tokenize` the tokens of a text."""

from msgspec import UNSET, UnsetType

from quire.server.apis.openai.wire import (
    Rendered,
    RenderedPrompt,
    RenderedSampling,
    Tokenized,
)
from quire.server.generation.engine_requests import num_output_tokens
from quire.server.generation.input import OutputOptions
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.prompts import decode_tokens
from quire.server.models.input_context import InputContext


def tokens_shown(
    token_ids: tuple[int, ...], wants_strs: bool | None, context: InputContext
) -> Tokenized:
    """Return the tokens of a text, with what each stands for if it is wanted."""
    strs: tuple[str, ...] | UnsetType = UNSET
    if wants_strs:
        of = context.tokenizer.token_bytes.of
        strs = tuple(of(token_id).decode(errors="replace") for token_id in token_ids)
    return Tokenized(len(token_ids), context.facts.max_model_len, token_ids, strs)


def rendered(read: TokenizedRequest, context: InputContext) -> Rendered:
    """Return what a request would run with. Raises RequestError for a limit that cannot be kept."""
    options = read.request
    assert isinstance(options, OutputOptions), "outputs are generated"
    shown = tuple(
        RenderedPrompt(
            decode_tokens(prompt.token_ids, context),
            prompt.token_ids,
            len(prompt.token_ids),
            0 if options.drops_output else num_output_tokens(prompt, options, context.facts),
        )
        for prompt in read.prompts
    )
    model = context.limits.served_name(options.model)
    assert model is not None, "the model was checked"
    return Rendered(model, context.facts.max_model_len, shown, _sampling(options, context))


def _sampling(options: OutputOptions, context: InputContext) -> RenderedSampling:
    facts = context.facts
    sampling = options.sampling(context.limits.defaults, facts.vocab_size)
    return RenderedSampling(
        n=options.num_returned,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        seed=options.seed,
        min_tokens=options.min_tokens,
        stop=options.stop,
        stop_token_ids=options.stop_token_ids,
        eos_token_ids=() if options.ignore_eos else facts.eos_token_ids,
    )
