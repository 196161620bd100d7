"""Completions and chats as inputs, after checks of their fields against each other."""

from collections.abc import Mapping, Sequence

from quire.server.apis.openai.messages import messages_of
from quire.server.apis.protocol.caching import asked_retention
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from quire.server.apis.protocol.fields import GenerationFields
from quire.server.apis.protocol.parse import invalid
from quire.server.apis.protocol.structured import WHITESPACE_FIELD, StructuredFields
from quire.server.apis.protocol.tools import CHOICES, AllowedTools, Function, NamedTool, input_tool
from quire.server.apis.protocol.tools import ToolChoice as GivenChoice
from quire.server.errors import RequestError
from quire.server.generation.checks import enforced_path
from quire.server.generation.input import (
    ChatInput,
    InputTool,
    NamedChoice,
    OutputOptions,
    TemplateOptions,
    TextInput,
    ToolChoice,
)
from quire.server.generation.prompts import check_truncation
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.tenancy.latency_targets import LatencyTargets

CONTINUE = "continue_final_message"
MAX_SEQUENCES = 1024
"""Prompts times choices of one HTTP request."""


def text_input(request: CompletionRequest, no_effect: tuple[str, ...] = ()) -> TextInput:
    """Return a completion as an input. Raises RequestError."""
    options = _options(
        request,
        num_generated=request.best_of or request.n or 1,
        num_logprobs=request.logprobs,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        paths={"num_logprobs": "logprobs"},
    )
    _check_completion(request, options)
    _check_whitespace(request, has_tools=False)
    return TextInput(request.prompt, options, request.suffix, bool(request.echo), no_effect)


def chat_input(
    request: ChatRequest, no_effect: tuple[str, ...] = (), ignored: tuple[str, ...] = ()
) -> ChatInput:
    """Return a chat as an input; `no_effect` and `ignored` are paths of fields. Raises
    RequestError."""
    _check_chat(request)
    is_old = bool(request.functions) or request.function_call not in (None, "none")
    if is_old:
        _check_old_alone(request)
    paths = {"num_logprobs": "top_logprobs"}
    if request.functions or request.function_call is not None:
        paths |= {"tools": "functions", "tool_choice": "function_call"}
    kwargs, documents = request.chat_template_kwargs, request.documents
    retention = asked_retention(request.prompt_cache_retention, request.prompt_cache_options)
    unused = () if request.prompt_cache_options is None else request.prompt_cache_options.no_effect
    chat = ChatInput(
        messages=messages_of(request.messages),
        options=_options(
            request,
            num_generated=request.n or 1,
            num_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            default_max_tokens=None,
            paths={**paths, "retention_s": retention.path},
            session=request.prompt_cache_key or request.user or "",
            retention_s=retention.seconds,
        ),
        tools=_functions(request.functions or ()) if is_old else _tools(request),
        choice=_old_choice(request) if is_old else _choice(request),
        template=TemplateOptions(
            add_generation_prompt=request.add_generation_prompt is not False,
            continues=_continues(request),
            kwargs=kwargs or {},
            source=request.chat_template,
            documents=tuple(documents or ()),
        ),
        echo=bool(request.echo),
        effort=request.reasoning_effort,
        thinking_token_budget=request.thinking_token_budget,
        include_reasoning=request.include_reasoning is not False,
        old_calls=request.functions is not None or is_old,
        no_effect=(*no_effect, *unused),
        ignored=ignored,
    )
    _check_whitespace(request, has_tools=enforced_path(chat) is not None)
    return chat


def _options(
    request: StructuredFields,
    *,
    num_generated: int,
    num_logprobs: int | None,
    default_max_tokens: int | None,
    paths: Mapping[str, str],
    session: str = "",
    retention_s: float | None = None,
) -> OutputOptions:
    _check_shared(request)
    newer, stream = request.max_completion_tokens, request.stream_options
    if newer is not None:
        paths = {**paths, "max_tokens": "max_completion_tokens"}
    structured = request.structured_outputs
    return OutputOptions(
        model=request.model,
        stream=bool(request.stream),
        include_usage=stream is not None and bool(stream.include_usage),
        continuous_usage=stream is not None and bool(stream.continuous_usage_stats),
        return_progress=bool(request.return_progress),
        num_returned=request.n or 1,
        num_generated=num_generated,
        max_tokens=request.max_tokens if newer is None else newer,
        default_max_tokens=default_max_tokens,
        min_tokens=request.min_tokens or 0,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        logit_bias=_logit_bias(request.logit_bias or {}),
        allowed_token_ids=tuple(request.allowed_token_ids or ()),
        bad_words=tuple(request.bad_words or ()),
        seed=request.seed,
        stop=tuple(request.stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        ignore_eos=bool(request.ignore_eos),
        skip_special_tokens=request.skip_special_tokens is not False,
        add_special_tokens=request.add_special_tokens,
        return_token_ids=bool(request.return_token_ids),
        return_tokens_as_token_ids=bool(request.return_tokens_as_token_ids),
        num_logprobs=num_logprobs,
        prompt_logprobs=request.prompt_logprobs,
        logprob_token_ids=tuple(request.logprob_token_ids or ()),
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        truncation_side=request.truncation_side,
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
        targets=LatencyTargets(request.target_ttft_ms, request.target_itl_ms),
        session=session,
        retention_s=retention_s,
        grammar=_grammar(request.grammar_sources),
        disable_any_whitespace=structured and structured.disable_any_whitespace,
        paths=paths,
    )


def _check_shared(request: GenerationFields) -> None:
    for name in ("stream_options", "return_progress"):
        if getattr(request, name) and not request.stream:
            raise RequestError(f"'{name}' is only allowed with 'stream': true.", param=name)
    if request.max_completion_tokens is not None and request.max_tokens not in (
        None,
        request.max_completion_tokens,
    ):
        raise RequestError(
            "'max_tokens' and 'max_completion_tokens' say different things; give one of them.",
            param="max_tokens",
        )
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError(
            "'prompt_logprobs' come with the whole answer: they do not go with 'stream'.",
            param="prompt_logprobs",
        )
    check_truncation(request.truncate_prompt_tokens, request.truncation_side)


def _logit_bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    key_of: dict[int, str] = {}
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise RequestError(
                "Keys of 'logit_bias' must be token ids, written as decimal numbers.",
                param="logit_bias",
            )
        token_id = int(key)
        if key_of.setdefault(token_id, key) != key:
            raise RequestError(
                f"Keys {key_of[token_id]!r} and {key!r} of 'logit_bias' are the same token id; "
                "give it once.",
                param="logit_bias",
            )
    return tuple((token_id, float(given[key])) for token_id, key in key_of.items())


def _grammar(sources: Sequence[GrammarSource]) -> GrammarSource | None:
    if len(sources) > 1:
        raise RequestError(
            f"'{sources[0].field}' and '{sources[1].field}' both say what the output must be of; "
            "give one of them.",
            param=sources[1].field,
        )
    return sources[0] if sources else None


def _check_whitespace(request: StructuredFields, *, has_tools: bool) -> None:
    """Raise RequestError where the request says which white space JSON has, and asks for none."""
    structured, sources = request.structured_outputs, request.grammar_sources
    disabled = structured and structured.disable_any_whitespace
    has_json = any(source.kind is GrammarKind.JSON for source in sources)
    if disabled is None or has_json or has_tools:
        return
    if disabled or not sources:
        raise RequestError(
            f"'{WHITESPACE_FIELD}' goes with JSON alone: that of 'json', 'json_object', "
            "'response_format' or 'guided_json', or of tools that must be called as their schemas "
            "say.",
            param=WHITESPACE_FIELD,
        )


def _check_completion(request: CompletionRequest, options: OutputOptions) -> None:
    num_generated, num_returned = options.num_generated, options.num_returned
    if num_generated < num_returned:
        raise RequestError(
            f"'best_of' is {num_generated}, but 'n' asks for {num_returned} of them.",
            param="best_of",
        )
    if request.stream and num_generated > num_returned:
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
        name = options.num_outputs_path
        raise RequestError(
            f"{len(request.prompt)} prompts with {name} {num_generated} are more than the "
            f"{MAX_SEQUENCES} outputs that one request may ask for.",
            param=name,
        )


def _check_suffix(request: CompletionRequest) -> None:
    """Refuse what needs a prompt that is a beginning alone, and prompts that are nothing."""
    empty = next((given.field for given in request.prompt if not given.content), None)
    if empty is not None and not request.suffix:
        raise invalid(empty, "must not be empty")
    others = {"echo": request.echo, "truncate_prompt_tokens": request.truncate_prompt_tokens}
    for field, value in others.items():
        if request.suffix and value:
            raise RequestError(
                f"'{field}' does not go with 'suffix': the prompt is then another than the one "
                "given.",
                param=field,
            )


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise RequestError(
            "'top_logprobs' is only allowed with 'logprobs': true.", param="top_logprobs"
        )
    if request.max_tokens == 0:
        raise invalid("max_tokens", "must be 1 or more")
    if _continues(request):
        _check_continued(request)
    elif request.echo:
        raise RequestError(
            "'echo' shows the message that 'continue_final_message' goes on with: it is only "
            "allowed with that.",
            param="echo",
        )


def _continues(request: ChatRequest) -> bool:
    """Return whether the answer goes on with the last message, which may say so itself."""
    if request.continue_final_message is None:
        return request.messages[-1].prefix is True
    return request.continue_final_message


def _check_continued(request: ChatRequest) -> None:
    """Check that the answer can go on with the last message. Raises RequestError."""
    last, where = request.messages[-1], f"messages[{len(request.messages) - 1}]"
    asked = f"{where}.prefix" if request.continue_final_message is None else CONTINUE
    if request.add_generation_prompt:
        raise RequestError(
            f"'{asked}' and 'add_generation_prompt' exclude each other.", param=asked
        )
    if last.role != "assistant":
        raise RequestError(f"'{asked}' needs a last message of the role 'assistant'.", param=asked)
    for name in ("tool_calls", "function_call"):
        if getattr(last, name):
            path = f"{where}.{name}"
            raise RequestError(
                f"'{asked}' goes on with text alone, and '{path}' would be lost.", param=path
            )


def _check_old_alone(request: ChatRequest) -> None:
    """Refuse tools beside the functions that OpenAI's API had before them."""
    old = "functions" if request.functions else "function_call"
    if request.tools or request.tool_choice not in (None, "none"):
        raise RequestError(f"'{old}' and 'tools' exclude each other; give one of them.", param=old)
    if request.parallel_tool_calls:
        raise RequestError(
            "'parallel_tool_calls' cannot be true with 'functions': an answer holds one "
            "'function_call'.",
            param="parallel_tool_calls",
        )


def _functions(given: Sequence[Function]) -> tuple[InputTool, ...]:
    return tuple(input_tool(each, f"functions[{index}]") for index, each in enumerate(given))


def _tools(request: ChatRequest) -> tuple[InputTool, ...]:
    return tuple(
        input_tool(tool.function, f"tools[{index}].function")
        for index, tool in enumerate(request.tools or ())
    )


def _old_choice(request: ChatRequest) -> ToolChoice:
    return _choice_of(request.function_call, "function_call.name", one_call=True)


def _choice(request: ChatRequest) -> ToolChoice:
    one_call = request.parallel_tool_calls is False
    return _choice_of(request.tool_choice, "tool_choice.function.name", one_call=one_call)


def _choice_of(given: GivenChoice | None, path: str, *, one_call: bool) -> ToolChoice:
    """Return a choice; `path` leads to the name of one tool."""
    if isinstance(given, NamedTool):
        named = (NamedChoice(given.name, path),)
        return ToolChoice("required", named, names_one=True, one_call=one_call)
    if isinstance(given, AllowedTools):
        where = "tool_choice.allowed_tools.tools[{}].function.name"
        among = tuple(
            NamedChoice(name, where.format(index)) for index, name in enumerate(given.names)
        )
        return ToolChoice("required" if given.is_required else "auto", among, one_call=one_call)
    return ToolChoice(None if given is None else CHOICES[given], one_call=one_call)
