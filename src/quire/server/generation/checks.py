"""Checks of an input before its prompts become tokens: values against each other and against the
model, the same for every API. An API has checked the types and ranges of its own fields."""

from collections.abc import Sequence

from quire.server.errors import NOT_FOUND, ContextLengths, ContextTooLong, RequestError
from quire.server.generation.input import (
    ChatInput,
    Input,
    InputMessage,
    InputTool,
    OutputOptions,
    TextInput,
)
from quire.server.http.endpoints import EMBEDDINGS, RERANK, SCORE
from quire.server.models.input_context import InputContext
from quire.server.parsers.formats import ToolFormat, ToolFormatName
from quire.server.text.chat_template import ChatTemplate

NO_TOKENS_LEFT = "no room is left for an output"
MAX_SHOWN_CHARS = 200
RESERVED_KWARGS = ("messages", "add_generation_prompt", "continue_final_message", "tools")
"""Names of templates that are fields of the request."""


def check(given: Input, context: InputContext) -> None:
    """Check an input against the model. Raises RequestError for the first fault."""
    options = given.options
    check_model(options.model, context)
    check_generates(context)
    _check_vocabulary(options, context.facts.vocab_size)
    _check_logprobs(options, context.limits.max_logprobs)
    if isinstance(given, ChatInput):
        check_conversation(given, context)
    _check_grammar(given, context)
    num_prompts = len(given.prompts) if isinstance(given, TextInput) else 1
    _check_num_outputs(num_prompts, options, context.limits.max_outputs)


def check_conversation(chat: ChatInput, context: InputContext) -> None:
    """Check messages and tools against each other and against the chat template. Raises
    RequestError."""
    _check_kwargs(chat)
    _check_functions(chat.tools)
    _check_choice(chat)
    _check_results(chat.messages)
    template, form = context.tokenizer.template, call_format(chat, context)
    if template is not None and not (form is not None and form.in_text):
        _check_template(chat, template)
    if chat.offered_tools and form is None:
        raise RequestError(
            "The format of this model's tool calls is not known: start the server with "
            f"--tool-call-parser, or let '{chat.path('tool_choice')}' require or forbid calls.",
            param=chat.path("tools"),
            code="unsupported_parameter",
        )


def check_model(name: str | None, context: InputContext) -> None:
    """Raise RequestError for a model that is not served."""
    if context.limits.served_name(name) is None:
        raise model_not_found(name or "", context.limits.model_names)


def model_not_found(name: str, model_names: tuple[str, ...]) -> RequestError:
    """Return the error for a model that is not served."""
    shown, names = name[:MAX_SHOWN_CHARS], ", ".join(model_names)
    return RequestError(
        f"The model {shown!r} does not exist; this server has {names}.",
        param="model",
        code="model_not_found",
        status=NOT_FOUND,
    )


def check_generates(context: InputContext) -> None:
    """Raise RequestError for a model that gives embeddings or scores alone."""
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
    return ContextTooLong(
        f"The model's context is {most} tokens and '{field}' has {num_tokens}: {why}.",
        param=field,
        lengths=ContextLengths(most, num_tokens),
    )


def no_effect_warnings(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return a warning that names the fields that were accepted and do nothing, if any."""
    return (f"accepted without effect: {', '.join(fields)}",) if fields else ()


def _check_vocabulary(options: OutputOptions, vocab_size: int) -> None:
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        check_token_ids(getattr(options, name), vocab_size, options.path(name))
    for token_id, _ in options.logit_bias:
        _check_token_id(token_id, vocab_size, options.path("logit_bias"))


def _check_logprobs(options: OutputOptions, most: int) -> None:
    """Raise RequestError for more alternatives than this server gives, or for token ids that would
    not be scored."""
    for name in ("prompt_logprobs", "num_logprobs"):
        number, field = getattr(options, name), options.path(name)
        if (number or 0) > most:
            raise RequestError(
                f"Invalid '{field}': it asks for {number} tokens, this server gives at most {most} "
                "(--max-logprobs).",
                param=field,
            )
    if options.logprob_token_ids and options.num_logprobs is None:
        raise RequestError(
            "'logprob_token_ids' are scored beside the tokens of the output: give 'logprobs' too.",
            param="logprob_token_ids",
        )


def _check_num_outputs(num_prompts: int, options: OutputOptions, most: int) -> None:
    """Raise RequestError for more outputs than the engine holds at once, `most`.

    Such a request would be answered for ever that the server is full.
    """
    if num_prompts * options.num_generated > most:
        name = options.num_outputs_path
        raise RequestError(
            f"{num_prompts} prompts with {name} {options.num_generated} are more than the {most} "
            "outputs that this server holds at once.",
            param=name if options.num_generated > 1 else "prompt",
        )


_WHY_NOT = {
    "ignore_eos": "cannot be true, since the grammar says where the output ends,",
    "min_tokens": "cannot be given, since the grammar says where the output may end,",
    "max_tokens": "cannot be 0",
}


def _check_grammar(given: Input, context: InputContext) -> None:
    """Raise RequestError for what does not go with a grammar."""
    options = given.options
    enforced = enforced_path(given) if isinstance(given, ChatInput) else None
    field = enforced if options.grammar is None else options.grammar.field
    if field is None:
        return
    excluded = {
        "ignore_eos": options.ignore_eos,
        "min_tokens": options.min_tokens > 0,
        "max_tokens": options.drops_output,
    }
    wrong = next((name for name, is_given in excluded.items() if is_given), None)
    if wrong is not None:
        path = options.path(wrong)
        raise RequestError(f"'{path}' {_WHY_NOT[wrong]} with '{field}'.", param=path)
    if not context.facts.eos_token_ids:
        raise RequestError(f"'{field}' needs a model with an end-of-sequence token.", param=field)


def _check_kwargs(chat: ChatInput) -> None:
    field, kwargs = chat.path("chat_template_kwargs"), chat.template.kwargs
    if chat.template.documents and "documents" in kwargs:
        raise RequestError(
            f"'documents' and '{field}.documents' exclude each other.", param=f"{field}.documents"
        )
    for name in RESERVED_KWARGS:
        if name in kwargs:
            raise RequestError(
                f"'{field}' cannot say '{name}'; use the field '{name}'.", param=f"{field}.{name}"
            )


def _check_functions(tools: Sequence[InputTool]) -> None:
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise RequestError(f"Two tools have the name {tool.name!r}.", param=f"{tool.path}.name")
        names.add(tool.name)
        schema, where = tool.parameters or {}, tool.schema_path
        if schema.get("type", "object") != "object":
            raise RequestError(
                f"Invalid '{where}': it must be the JSON schema of an object.",
                param=f"{where}.type",
            )
        if not isinstance(schema.get("properties", {}), dict):
            raise RequestError(
                f"Invalid '{where}.properties': it must be an object.",
                param=f"{where}.properties",
            )


def _check_choice(chat: ChatInput) -> None:
    choice, names = chat.choice, [tool.name for tool in chat.tools]
    if choice.mode in (None, "none"):
        return
    for name, path in choice.among or ():
        if name not in names:
            raise RequestError(
                f"'{path}' is {name!r}, which is none of '{chat.path('tools')}'.", param=path
            )
    if not names:
        field = chat.path("tool_choice")
        raise RequestError(f"'{field}' is only allowed with '{chat.path('tools')}'.", param=field)


def _check_results(messages: Sequence[InputMessage]) -> None:
    """Raise RequestError for a tool's result without the call that it answers."""
    ids: set[str] = set()
    for message in messages:
        ids.update(call.id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id not in ids:
            raise RequestError(
                f"No message before '{message.path}' holds a call with the id "
                f"{message.tool_call_id!r}.",
                param=message.call_id_path,
            )


def _check_template(chat: ChatInput, template: ChatTemplate) -> None:
    """Raise RequestError for what the template would drop in silence."""
    if chat.offered_tools and not template.takes_tools:
        raise RequestError(
            "The model's chat template has no place for tools: start the server with "
            "--tool-call-parser generic, and they are described in its text.",
            param=chat.path("tools"),
            code="unsupported_parameter",
        )
    calls = (call for message in chat.messages for call in message.tool_calls)
    call = next(calls, None)
    if call is not None and not template.takes_calls:
        raise RequestError(
            "The model's chat template has no place for tool calls.",
            param=call.path,
            code="unsupported_parameter",
        )


def call_format(chat: ChatInput, context: InputContext) -> ToolFormat | None:
    """Return how the model writes calls, None if that is not known. A model that must call a tool
    is held to a format anyway, which then is the most common one."""
    known = context.limits.tool_format
    return ToolFormatName.hermes.value if known is None and chat.requires_calls else known


def enforced_path(chat: ChatInput) -> str | None:
    """Return the path of the field for which calls must be of a grammar, None without one."""
    if chat.requires_calls or (chat.choice.among is not None and chat.offered_tools):
        return chat.path("tool_choice")
    strict = (tool.strict_path for tool in chat.callable_tools if tool.strict)
    return next(strict, None)
