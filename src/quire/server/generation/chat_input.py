"""A chat request becomes a prompt in tokens, whichever API it came by."""

from dataclasses import replace

from quire.server.errors import RequestError
from quire.server.generation.field_checks import (
    check_chat,
    check_generates,
    check_model,
    check_num_outputs,
    check_shared,
    no_effect_warnings,
)
from quire.server.generation.output_limits import check_logprobs
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.prompt_truncation import truncation_warnings
from quire.server.generation.prompts import (
    encode_any,
    encode_chat,
    render_chat,
    unread_kwargs,
    with_own_template,
)
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.reasoning_options import effort_warnings, thinking_budget
from quire.server.generation.structured_outputs import check_structured, output_grammar
from quire.server.generation.token_bans import bad_word_tokens
from quire.server.generation.tools.checks import check_tools
from quire.server.generation.tools.parsing import parser_options
from quire.server.grammars.client_names import ClientNames
from quire.server.models.input_context import InputContext


def read_named(
    chat: ChatRequest, names: ClientNames, no_effect: tuple[str, ...], context: InputContext
) -> TokenizedRequest:
    """Read what became a chat; `names` are those that the client has for its fields."""
    try:
        read = _read_chat(chat, no_effect, context)
    except RequestError as error:
        raise names.error(error) from None
    grammar = None if read.grammar is None else names.grammar(read.grammar)
    prompts = tuple(prompt._replace(field=names.of(prompt.field)) for prompt in read.prompts)
    return replace(
        read,
        prompts=prompts,
        warnings=tuple(map(names.of, read.warnings)),
        grammar=grammar,
        names=replace(names, origins={}),
    )


def _read_chat(
    request: ChatRequest, no_effect: tuple[str, ...], context: InputContext
) -> TokenizedRequest:
    check_model(request.model, context)
    check_generates(context)
    check_shared(request, context.facts.vocab_size)
    check_logprobs(request, context.limits.max_logprobs)
    check_chat(request)
    context = with_own_template(request, context)
    check_tools(request, context)
    check_structured(request, context.facts)
    check_num_outputs(1, request, context.limits.max_outputs)
    warnings = (
        *no_effect_warnings(no_effect),
        *unread_kwargs(request, context),
        *effort_warnings(request, context),
    )
    text = render_chat(request, context)
    prompt = encode_chat(text, request, context)
    emptied = ("chat_template", "chat_template_kwargs", "tools", "documents")
    dropped: dict[str, object] = {"messages": [], **dict.fromkeys(emptied)}
    parsing = parser_options(request, text, context)
    grammar = output_grammar(request, parsing, text, context)
    kept = request.model_copy(update=dropped)
    budget = thinking_budget(request, parsing, context)
    bad_words = bad_word_tokens(request, grammar, context)
    warnings += truncation_warnings((prompt,))
    return TokenizedRequest(
        kept, (prompt,), warnings, parsing, grammar, budget, bad_words=bad_words
    )


def chat_tokens(chat: ChatRequest, context: InputContext) -> tuple[int, ...]:
    """Return the tokens of a conversation, which may be somewhat too long for the context."""
    check_chat(chat)
    check_tools(chat, context)
    text = render_chat(chat, context)
    return encode_any(text, "messages", context, add_special_tokens=bool(chat.add_special_tokens))
