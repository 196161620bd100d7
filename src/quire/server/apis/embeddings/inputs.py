"""The inputs of an embedding request in tokens."""

import msgspec

from quire.engine.messages import EmbeddingFacts
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.errors import RequestError
from quire.server.generation.checks import check_prompt_length, check_token_ids
from quire.server.generation.context import Prompt
from quire.server.generation.input import GivenPrompt, TruncationSide
from quire.server.generation.prompts import (
    MIN_COUNTED_CHARS,
    WHAT_FITS,
    check_truncation,
    refuse_longer,
)
from quire.server.http.endpoints import RERANK, SCORE
from quire.server.models.input_context import InputContext


def embeddings_of(context: InputContext) -> EmbeddingFacts:
    """Return how the model's embeddings are made. Raises RequestError for one that gives none."""
    facts = context.facts.embeddings
    if facts is None or facts.why_not:
        why = f": {facts.why_not}" if facts is not None else ""
        if context.facts.scores is not None:
            why = f": it is a cross-encoder, which scores pairs of texts, at {RERANK} and {SCORE}"
        raise RequestError(
            f"The model gives no embeddings{why}.", param="model", code="unsupported_model"
        )
    return facts


def check_embedding(request: EmbeddingRequest, context: InputContext) -> None:
    """Check a request against the model. Raises RequestError."""
    facts, most = embeddings_of(context), context.limits.max_outputs
    if request.dimensions is not None and request.dimensions > facts.size:
        raise RequestError(
            f"Invalid 'dimensions': it is {request.dimensions}, and this model's embeddings have "
            f"{facts.size}.",
            param="dimensions",
        )
    if len(request.input) > most:
        raise RequestError(
            f"{len(request.input)} inputs are more than the {most} that this server holds at once.",
            param="input",
        )
    for given in request.input:
        if not given.content:
            raise RequestError(f"Invalid '{given.field}': must not be empty.", param=given.field)
    check_truncation(request.truncate_prompt_tokens, request.truncation_side)


def read_inputs(request: EmbeddingRequest, context: InputContext) -> tuple[Prompt, ...]:
    """Return the inputs in tokens. Raises RequestError."""
    facts = msgspec.structs.replace(context.facts, max_model_len=embeddings_of(context).max_len)
    context = context._replace(limits=context.limits._replace(facts=facts))
    return tuple(_read_input(given, request, context) for given in request.input)


def _read_input(given: GivenPrompt, request: EmbeddingRequest, context: InputContext) -> Prompt:
    content, field = given
    most, limit = context.facts.max_model_len, request.truncate_prompt_tokens
    limit = most if limit == WHAT_FITS else limit
    if isinstance(content, str):
        prompt = _encoded(content, field, request, context, limit)
    elif limit is None:
        check_prompt_length(len(content), field, most)
        prompt = Prompt(content, field)
    else:
        prompt = Prompt(_kept(content, limit, request), field, num_cut=max(len(content) - limit, 0))
    check_prompt_length(len(prompt.token_ids), field, most)
    check_token_ids(prompt.token_ids, context.facts.vocab_size, field)
    return prompt


def _encoded(
    text: str, field: str, request: EmbeddingRequest, context: InputContext, limit: int | None
) -> Prompt:
    """Return a text in tokens, cut to `limit` of them. The special tokens around a text stay: the
    last of them may be what its embedding is read from."""
    refuse_longer(text, field, context, at_least=0 if limit is None else MIN_COUNTED_CHARS)
    tokenizer, adds = context.tokenizer, request.add_special_tokens is not False
    token_ids = tokenizer.encode(text, add_special_tokens=adds)
    if not token_ids:
        raise RequestError(f"Invalid '{field}': it has no tokens.", param=field)
    if limit is None or len(token_ids) <= limit:
        return Prompt(token_ids, field)
    inner = tokenizer.encode(text, add_special_tokens=False) if adds else token_ids
    num_around = len(token_ids) - len(inner)
    if num_around >= limit:
        raise RequestError(
            f"Invalid 'truncate_prompt_tokens': it is {limit}, and {num_around} special tokens "
            "stand around each text.",
            param="truncate_prompt_tokens",
        )
    first = _num_before(token_ids, inner)
    kept = _kept(inner, limit - num_around, request)
    left = (*token_ids[:first], *kept, *token_ids[first + len(inner) :])
    return Prompt(left, field, num_cut=len(token_ids) - len(left))


def _num_before(token_ids: tuple[int, ...], inner: tuple[int, ...]) -> int:
    """Return how many special tokens stand before a text."""
    num_around = len(token_ids) - len(inner)
    starts = range(num_around + 1)
    return next((i for i in starts if token_ids[i : i + len(inner)] == inner), num_around)


def _kept(token_ids: tuple[int, ...], most: int, request: EmbeddingRequest) -> tuple[int, ...]:
    is_left = request.truncation_side is TruncationSide.LEFT
    return token_ids[-most:] if is_left else token_ids[:most]
