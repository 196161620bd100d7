"""Checks of a parsed body, before and while its prompts become tokens: what the ranges of single
fields cannot say, fields against each other and against the model.
"""

from collections.abc import Mapping, Sequence

from quire.server.errors import NOT_FOUND, RequestError
from quire.server.generation.protocol.capabilities import EMBEDDINGS, RERANK, SCORE
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.completions import CompletionRequest
from quire.server.generation.protocol.fields import GenerationFields
from quire.server.models.input_context import InputContext

MAX_SEQUENCES = 1024
"""Prompts times choices of one HTTP request."""
NO_TOKENS_LEFT = "no room is left for an output"
MAX_SHOWN_CHARS = 200
RESERVED_KWARGS = ("messages", "add_generation_prompt", "continue_final_message", "tools")
"""Names of templates that are fields of the request."""


def check_shared(request: GenerationFields, vocab_size: int) -> None:
    """Check what both endpoints share. Raises RequestError."""
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "'stream_options' is only allowed with 'stream': true.", param="stream_options"
        )
    if request.return_progress and not request.stream:
        raise RequestError(
            "'return_progress' is only allowed with 'stream': true.", param="return_progress"
        )
    if request.max_completion_tokens is not None and request.max_tokens not in (
        None,
        request.max_completion_tokens,
    ):
        raise RequestError(
            "'max_tokens' and 'max_completion_tokens' say different things; give one of them.",
            param="max_tokens",
        )
    for field, token_ids in request.token_id_lists.items():
        check_token_ids(token_ids, vocab_size, field)
    _check_logit_bias(request.logit_bias or {}, vocab_size)


def _check_logit_bias(logit_bias: Mapping[str, float], vocab_size: int) -> None:
    key_of: dict[int, str] = {}
    for key in logit_bias:
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise RequestError(
                "Keys of 'logit_bias' must be token ids, written as decimal numbers.",
                param="logit_bias",
            )
        token_id = int(key)
        _check_token_id(token_id, vocab_size, "logit_bias")
        if key_of.setdefault(token_id, key) != key:
            raise RequestError(
                f"Keys {key_of[token_id]!r} and {key!r} of 'logit_bias' are the same token id; "
                "give it once.",
                param="logit_bias",
            )


def check_completion(request: CompletionRequest) -> None:
    """Check the fields of a completion against each other. Raises RequestError."""
    num_generated = request.num_generated
    if num_generated < request.num_returned:
        raise RequestError(
            f"'best_of' is {num_generated}, but 'n' asks for {request.num_returned} of them.",
            param="best_of",
        )
    if request.stream and num_generated > request.num_returned:
        raise RequestError(
            "The best of several outputs are known at their end: 'best_of' above 'n' does not go "
            "with 'stream'.",
            param="best_of",
        )
    _check_suffix(request)
    if request.max_tokens == 0 and not request.echo:
        raise RequestError("'max_tokens' can be 0 only with 'echo'.", param="max_tokens")
    if request.max_tokens == 0 and request.min_tokens:
        raise RequestError(
            f"'min_tokens' is {request.min_tokens}, but 'max_tokens' is 0: no output is asked for.",
            param="min_tokens",
        )
    if len(request.prompt) * num_generated > MAX_SEQUENCES:
        name = _num_outputs_field(request)
        raise RequestError(
            f"{len(request.prompt)} prompts with {name} {num_generated} are more than the "
            f"{MAX_SEQUENCES} outputs that one request may ask for.",
            param=name,
        )


def _check_suffix(request: CompletionRequest) -> None:
    """Refuse what needs a prompt that is a beginning alone, and prompts that are nothing."""
    empty = next((given.field for given in request.prompt if not given.content), None)
    if empty is not None and not request.suffix:
        raise RequestError(f"Invalid '{empty}': must not be empty.", param=empty)
    others = {"echo": request.echo, "truncate_prompt_tokens": request.truncate_prompt_tokens}
    for field, value in others.items():
        if request.suffix and value:
            raise RequestError(
                f"'{field}' does not go with 'suffix': the prompt is then another than the one "
                "given.",
                param=field,
            )


def check_num_outputs(num_prompts: int, request: GenerationFields, most: int) -> None:
    """Raise RequestError for more outputs than the engine holds at once, `most`.

    Such a request would be answered for ever that the server is full.
    """
    if num_prompts * request.num_generated > most:
        name = _num_outputs_field(request)
        raise RequestError(
            f"{num_prompts} prompts with {name} {request.num_generated} are more than the {most} "
            "outputs that this server holds at once.",
            param=name if request.num_generated > 1 else "prompt",
        )


def _num_outputs_field(request: GenerationFields) -> str:
    return "best_of" if request.num_generated > request.num_returned else "n"


def check_chat(request: ChatRequest) -> None:
    """Check the fields of a chat request against each other. Raises RequestError."""
    if request.top_logprobs and not request.logprobs:
        raise RequestError(
            "'top_logprobs' is only allowed with 'logprobs': true.", param="top_logprobs"
        )
    if request.max_tokens == 0:
        raise RequestError("Invalid 'max_tokens': must be 1 or more.", param="max_tokens")
    if request.documents and "documents" in (request.chat_template_kwargs or {}):
        raise RequestError(
            "'documents' and 'chat_template_kwargs.documents' exclude each other.",
            param="chat_template_kwargs.documents",
        )
    for name in RESERVED_KWARGS:
        if name in (request.chat_template_kwargs or {}):
            raise RequestError(
                f"'chat_template_kwargs' cannot say '{name}'; use the field '{name}'.",
                param=f"chat_template_kwargs.{name}",
            )
    _check_continued(request)


def _check_continued(request: ChatRequest) -> None:
    """Check the fields that say whether the answer goes on with the last message. Raises
    RequestError."""
    if not request.continue_final_message:
        if request.echo:
            raise RequestError(
                "'echo' shows the message that 'continue_final_message' goes on with: it is only "
                "allowed with that.",
                param="echo",
            )
        return
    if request.add_generation_prompt:
        raise RequestError(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="continue_final_message",
        )
    if request.messages[-1].role != "assistant":
        raise RequestError(
            "'continue_final_message' needs a last message of the role 'assistant'.",
            param="continue_final_message",
        )
    if request.messages[-1].tool_calls:
        where = f"messages[{len(request.messages) - 1}].tool_calls"
        raise RequestError(
            f"'continue_final_message' goes on with text alone, and '{where}' would be lost.",
            param=where,
        )


def check_token_ids(token_ids: Sequence[int], vocab_size: int, where: str) -> None:
    """Raise RequestError for the first token id outside the vocabulary."""
    if max(token_ids, default=0) < vocab_size:
        return
    for index, token_id in enumerate(token_ids):
        _check_token_id(token_id, vocab_size, f"{where}[{index}]")


def _check_token_id(token_id: int, vocab_size: int, where: str) -> None:
    if token_id >= vocab_size:
        raise RequestError(
            f"Invalid '{where}': token id {token_id} is outside the vocabulary of {vocab_size}.",
            param=where,
        )


def check_prompt_length(num_tokens: int, field: str, most: int) -> None:
    """Raise RequestError for a prompt longer than the context, `most` tokens.

    It is called before anything is made of the prompt.
    """
    if num_tokens > most:
        raise prompt_too_long(num_tokens, field, most, NO_TOKENS_LEFT)


def prompt_too_long(num_tokens: int, field: str, most: int, why: str) -> RequestError:
    """Return the error for a prompt that the context of `most` tokens does not hold."""
    return RequestError(
        f"The model's context is {most} tokens and '{field}' has {num_tokens}: {why}.",
        param=field,
        code="context_length_exceeded",
    )


def check_model(name: str | None, context: InputContext) -> None:
    """Raise RequestError for a model that is not served."""
    if name is not None and name not in context.limits.model_names:
        raise model_not_found(name, context.limits.model_names)


def check_generates(context: InputContext) -> None:
    """Raise RequestError for a model that gives embeddings alone."""
    facts = context.facts
    if not facts.generates:
        what = "has no head that makes tokens" if facts.is_causal else "is an encoder"
        gives = f"embeddings, at {EMBEDDINGS}"
        if facts.scores is not None:
            gives = f"scores of pairs of texts, at {RERANK} and {SCORE}"
        raise RequestError(
            f"The model {what} ({facts.model_type}): it continues no text, and gives {gives}.",
            param="model",
            code="unsupported_model",
        )


def model_not_found(name: str, model_names: tuple[str, ...]) -> RequestError:
    """Return the error for a model that is not served."""
    shown, names = name[:MAX_SHOWN_CHARS], ", ".join(model_names)
    return RequestError(
        f"The model {shown!r} does not exist; this server has {names}.",
        param="model",
        code="model_not_found",
        status=NOT_FOUND,
    )


def no_effect_warnings(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return a warning that names the fields that were accepted and do nothing, if any."""
    return (f"accepted without effect: {', '.join(fields)}",) if fields else ()
