"""The effort goes to the model through its chat template, `thinking_token_budget` to the engine."""

from quire.scheduler.request import ThinkingBudget
from quire.server.errors import RequestError
from quire.server.generation.input import ChatInput
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions
from quire.server.text.chat_template import ChatTemplate

EFFORT = "reasoning_effort"
SWITCHES = ("enable_thinking", "thinking")
"""Names by which templates know whether the model is to reason."""
NO_EFFORT = "none"


def template_kwargs(chat: ChatInput, template: ChatTemplate) -> dict[str, object]:
    """Return what the template is told beside the messages: what the client gave, and the effort
    under each name that the template reads. Raises RequestError where these say different things.
    """
    given, effort = dict(chat.template.kwargs), chat.effort
    if effort is None:
        return given
    meant: dict[str, object] = {EFFORT: effort} | dict.fromkeys(SWITCHES, effort != NO_EFFORT)
    for name in template.read(meant):
        if given.setdefault(name, meant[name]) != meant[name]:
            field = f"{chat.path('chat_template_kwargs')}.{name}"
            raise RequestError(
                f"'{chat.path(EFFORT)}' and '{field}' say different things; give one of them.",
                param=field,
            )
    return given


def effort_warnings(chat: ChatInput, context: InputContext) -> tuple[str, ...]:
    """Return a warning if the effort cannot be told to the model. None at all always can: where the
    template has no word for it, the reasoning is closed as soon as it opens."""
    template, effort, field = context.tokenizer.template, chat.effort, chat.path(EFFORT)
    if template is None or effort in (None, NO_EFFORT) or template.read((EFFORT,)):
        return ()
    if template.read(SWITCHES):
        return (f"the chat template knows no {field}: the model reasons as long as it likes",)
    return (f"accepted without effect: {field}, which the chat template does not read",)


def thinking_budget(
    chat: ChatInput, parsing: ParserOptions, context: InputContext
) -> ThinkingBudget | None:
    """Return the limit on the reasoning of a request's outputs, None without one. Raises
    RequestError where the tags of the reasoning are not known."""
    max_tokens = chat.thinking_token_budget
    template = context.tokenizer.template
    if chat.effort == NO_EFFORT and max_tokens is None:
        can_say_no = template is not None and template.read(SWITCHES)
        max_tokens = None if can_say_no or parsing.reasoning is None else 0
    if max_tokens is None:
        return None
    if parsing.reasoning is None:
        field = chat.path("thinking_token_budget")
        raise RequestError(
            "The format of this model's reasoning is not known: start the server with "
            f"--reasoning-parser, or leave '{field}' out.",
            param=field,
            code="unsupported_parameter",
        )
    opens, closes = (
        context.tokenizer.encode(tag, add_special_tokens=False)
        for tag in (parsing.reasoning.opens, parsing.reasoning.closes)
    )
    return ThinkingBudget(max_tokens, opens, closes, parsing.in_reasoning)
