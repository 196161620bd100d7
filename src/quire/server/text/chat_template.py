"""Renders a checkpoint's chat template as transformers does, in a sandbox.

Templates come from the hub and are not trusted: they see plain values only, and can change nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TypeAlias

import jinja2
import jinja2.meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

ChatMessage: TypeAlias = Mapping[str, object]
TemplateTool: TypeAlias = Mapping[str, object]

_CONTINUE_MARK = "QUIRE_CONTINUES_HERE "


class TemplateRefused(Exception):
    """The template cannot render these messages; the text is the template's own if it has one."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only encloses them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """A namespace without private attributes, which would be a way out of the sandbox."""

    def __init__(self, /, *given: Mapping[str, object], **attributes: object) -> None:
        together = dict(*given, **attributes)
        for name in together:
            _refuse_private(name)
        super().__init__(together)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, nothing is escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _plain_dict(*given: Mapping[str, object], **items: object) -> dict[str, object]:
    return dict(*given, **items)


@jinja2.pass_context
def _as_it_is(context: Context, value: object) -> object:
    """Keep Jinja from computing what is constant while it compiles, where no bound holds: it does
    not where what is shown depends on the context."""
    return value


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
        optimized=False,
        finalize=_as_it_is,
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_plain_dict,
        namespace=_TemplateNamespace,
    )
    return environment


def _undeclared_names(environment: jinja2.Environment, source: str) -> set[str]:
    """Return the names that a template looks at. Jinja's own function for it computes constants."""
    names = jinja2.meta.TrackingCodeGenerator(environment)
    names.optimizer = None
    names.visit(environment.parse(source))
    return names.undeclared_identifiers


Bound: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Bounds the work that is done within it."""


class ChatTemplate:
    """Holds a template and its `source`; `special_tokens` are `bos_token` and the like, as
    templates name them. It renders within `bound`."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], bound: Bound = nullcontext
    ) -> None:
        environment = _environment()
        self._template = environment.from_string(source)
        self._read_names = _undeclared_names(environment, source)
        self._special_tokens = special_tokens
        self._bound = bound
        self.source = source

    @property
    def takes_tools(self) -> bool:
        return "tools" in self._read_names

    @property
    def takes_documents(self) -> bool:
        return "documents" in self._read_names

    @property
    def takes_calls(self) -> bool:
        """Whether the template shows calls that an assistant made."""
        return "tool_calls" in self.source

    def read(self, names: Iterable[str]) -> list[str]:
        """Return the names that the template looks at."""
        return sorted(self._read_names.intersection(names))

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return the names that the template never looks at."""
        return sorted(set(names) - self._read_names)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        extra: Mapping[str, object],
        tools: Sequence[TemplateTool] = (),
    ) -> str:
        """Return the prompt's text. With `continue_final_message` it ends where the last message
        ends. Raises TemplateRefused."""
        shown = [dict(message) for message in messages]
        if continue_final_message:
            shown[-1]["content"] = f"{shown[-1]['content']}{_CONTINUE_MARK}"
        names = {
            "tools": list(tools) or None,
            "documents": None,
            **self._special_tokens,
            **extra,
            "messages": shown,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with self._bound():
                text = self._template.render(names)
        except Exception as error:
            # Whatever a template stumbles over, it is this request that does not suit it.
            raise TemplateRefused(str(error) or type(error).__name__) from error
        return _until_mark(text) if continue_final_message else text


def _until_mark(text: str) -> str:
    end = text.rfind(_CONTINUE_MARK.strip())
    if end < 0:
        raise TemplateRefused("the template does not show the final message")
    kept = text[:end]
    # A template that trims content took the mark's last space: it would have trimmed ours too.
    return kept if text.startswith(_CONTINUE_MARK, end) else kept.rstrip()


def compile_template(
    source: str, special_tokens: Mapping[str, str], bound: Bound = nullcontext
) -> ChatTemplate:
    """Compile a template, within `bound`. Raises TemplateRefused if the template itself is
    broken."""
    try:
        with bound():
            return ChatTemplate(source, special_tokens, bound)
    except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError) as error:
        raise TemplateRefused(f"the chat template is broken: {error}") from error
