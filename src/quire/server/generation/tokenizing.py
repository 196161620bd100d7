"""An input becomes a request whose prompts are tokens, whichever API it came by."""

from dataclasses import replace

from quire.server.generation.checks import check, check_conversation, no_effect_warnings
from quire.server.generation.context import TextOptions
from quire.server.generation.input import ChatInput, Input, OutputOptions, TextInput
from quire.server.generation.output_form import output_grammar, parser_options
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.prompts import (
    encode_any,
    render_chat,
    text_prompts,
    truncation_warnings,
    unread_kwargs,
    with_cacheable,
    with_own_template,
    write_chat,
)
from quire.server.generation.reasoning_options import effort_warnings, thinking_budget
from quire.server.generation.token_bans import bad_word_tokens
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions


def tokenized(given: Input, context: InputContext) -> TokenizedRequest:
    """Return the request that an input asks for. Raises RequestError."""
    if isinstance(given, ChatInput):
        context = with_own_template(given, context)
    stops = _stop_tokens(given.options, context)
    if stops:
        stop_token_ids = (*given.options.stop_token_ids, *stops)
        given = replace(given, options=replace(given.options, stop_token_ids=stop_token_ids))
    check(given, context)
    made = _chat(given, context) if isinstance(given, ChatInput) else _text(given, context)
    return replace(made, text=replace(made.text, stop_tokens=stops)) if stops else made


def _text(given: TextInput, context: InputContext) -> TokenizedRequest:
    options = given.options
    prompts = text_prompts(given, context)
    if not given.echo:
        prompts = tuple(prompt._replace(text=None) for prompt in prompts)
    grammar = output_grammar(given, ParserOptions(), "", context)
    return TokenizedRequest(
        options,
        prompts,
        no_effect_warnings(given.no_effect) + truncation_warnings(prompts),
        replace(
            _text_options(options),
            echo=given.echo,
            scores_echo=given.echo and options.num_logprobs is not None,
            drop_output=options.drops_output,
        ),
        grammar,
        bad_words=bad_word_tokens(options, grammar, context),
    )


def _chat(given: ChatInput, context: InputContext) -> TokenizedRequest:
    options, no_effect, shortened = _with_retention(given.options, context)
    warnings = (
        *no_effect_warnings((*given.no_effect, *no_effect)),
        *shortened,
        *unread_kwargs(given, context),
        *effort_warnings(given, context),
    )
    (text, place), written, dropped = write_chat(given, context)
    prompt = with_cacheable(written, text, given, context)
    parsing = parser_options(given, text, context)
    grammar = output_grammar(given, parsing, text, context)
    budget = thinking_budget(given, parsing, context)
    return TokenizedRequest(
        options,
        (prompt,),
        warnings + dropped + truncation_warnings((prompt,)),
        replace(
            _text_options(options),
            echo=given.echo,
            parsing=parsing,
            include_reasoning=given.include_reasoning,
            old_calls=given.old_calls,
            names_tool=given.choice.names_one,
            keeps_order=given.keeps_order,
        ),
        grammar,
        budget,
        bad_words=bad_word_tokens(options, grammar, context),
        ignored=given.ignored,
        notices=(str(place),) if place else (),
        uses_tools=given.uses_tools,
    )


def _with_retention(
    options: OutputOptions, context: InputContext
) -> tuple[OutputOptions, tuple[str, ...], tuple[str, ...]]:
    """Return the options with a retention within the limit, the path of one that has no effect, and
    a warning of one that is shortened."""
    asked, most = options.retention_s, context.limits.max_retention_s
    if asked is None or asked <= most:
        return options, (), ()
    path = options.path("retention_s")
    if most == 0:
        return replace(options, retention_s=None), (path,), ()
    warning = f"{path} asks for {asked:g} s, and prompts are kept for at most {most:g} s"
    return replace(options, retention_s=most), (), (warning,)


def _stop_tokens(options: OutputOptions, context: InputContext) -> dict[int, str]:
    """Return the ids of special tokens that are stop strings: of such a token no text may be made
    in which the string could be found. At an end of the sequence the output ends by itself."""
    special_tokens, facts = context.tokenizer.special_tokens, context.facts
    ids = {special_tokens[stop]: stop for stop in options.stop if stop in special_tokens}
    ends = () if options.ignore_eos else facts.eos_token_ids
    return {each: ids[each] for each in ids if each < facts.vocab_size and each not in ends}


def _text_options(options: OutputOptions) -> TextOptions:
    return TextOptions(
        stop=options.stop,
        include_stop=options.include_stop_str_in_output,
        min_tokens=options.min_tokens,
        skip_special_tokens=options.skip_special_tokens,
        token_ids=options.return_token_ids,
        logprobs=options.num_logprobs is not None,
        prompt_logprobs=options.prompt_logprobs,
        names_tokens=options.return_tokens_as_token_ids,
    )


def chat_tokens(chat: ChatInput, context: InputContext) -> tuple[int, ...]:
    """Return the tokens of a conversation, which may be somewhat too long for the context. Raises
    RequestError."""
    check_conversation(chat, context)
    return encode_any(
        render_chat(chat, context).text,
        chat.path("messages"),
        context,
        add_special_tokens=bool(chat.options.add_special_tokens),
    )
