"""The formats in which models write tool calls and reasoning, as data.

Names are vLLM's. A format is taken from the model's chat template, which shows the calls of earlier
turns as the model is to write them. Where a template shows none, the format is `generic`.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call is a JSON object that holds the name and, under one of `arguments`, an object. The
    first of these is the one that models write."""

    arguments: tuple[str, ...] = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class HeadedCall:
    """A call is a head, then the arguments as a JSON object.

    head: a regular expression that matches all that comes before the object, the name as its group
        `name`, and as its group `id`, where it has one, what the model calls the call by.
    written: the head as models write it, with `{name}` and, where a call has one, `{number}`.
    tags: those in the head, which a tokenizer may have as special tokens.
    """

    head: str
    written: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A call is the name, then each parameter in tags; values are text, read by the tool's schema.

    name_stops: characters that end the name; `name_close` is read after it, where it comes.
    key_open, key_close, value_open, value_close: the tags of a parameter; between key and value
        there may be white space.
    close: the tag that ends the call, where it has one.
    """

    name_stops: str
    name_close: str
    key_open: str
    key_close: str
    value_open: str
    value_close: str
    close: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of a call, which a tokenizer may have as special tokens."""
        return (self.key_open, self.key_close, self.value_open, self.value_close, self.close)


@dataclass(frozen=True, slots=True)
class PythonCall:
    """A call is one of Python, its arguments keywords with literals."""


CallSyntax: TypeAlias = JsonCall | HeadedCall | TaggedCall | PythonCall


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format of tool calls, which stand in sections of the text.

    syntax: how a call is written. Where a second is given, the first is that of calls that begin
        with `{`.
    opens: tags that begin a section, anywhere in the text.
    first_opens: tags that begin one where there is no content yet.
    bare: characters of which one may begin a section without a tag, at the start of the text.
    is_list: calls may stand in brackets, with commas between them.
    writes_list: models write brackets, even around one call, unless a head comes before it.
    call_open: what comes before each call of a section.
    tails: what may come after each call, in this order.
    separator: what stands between the calls of a section without brackets.
    closes: the tag that ends a section.
    id_length: how many letters and digits an id has, where the template wants a number of them.
    ends_output: a call is a message that ends the output, and text is another message.
    in_text: tools, and calls and results of earlier turns, are text of the messages: the template
        has no other place for them.
    """

    syntax: tuple[CallSyntax, ...]
    mark: str
    opens: tuple[str, ...] = ()
    first_opens: tuple[str, ...] = ()
    bare: str = ""
    is_list: bool = False
    writes_list: bool = False
    call_open: str = ""
    tails: tuple[str, ...] = ()
    separator: str = ""
    closes: str = ""
    id_length: int | None = None
    ends_output: bool = False
    in_text: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the format, which a tokenizer may have as special tokens."""
        tags = [*self.opens, self.call_open, *self.tails, self.closes]
        tagged = (each for each in self.syntax if isinstance(each, HeadedCall | TaggedCall))
        tags += [tag for each in tagged for tag in each.tags]
        return tuple(tag for tag in tags if tag)


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between two tags.

    markup: what else stands in the text and is no content, such as the headers of channels.
    specials: parts of the tags that a tokenizer may have as special tokens.
    next_opens, answer_opens: of formats in channels, what stands between the reasoning and the next
        message, and before an answer.
    mark: what the source of a template has that shows the format; the closing tag if nothing is
        said.
    """

    opens: str
    closes: str
    markup: tuple[str, ...] = ()
    specials: tuple[str, ...] = ()
    next_opens: str = ""
    answer_opens: str = ""
    mark: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the format, which a tokenizer may have as special tokens."""
        return (self.opens, self.closes, *self.markup, *self.specials)


_JSON = JsonCall()


class ToolFormatName(Enum):
    """The formats of tool calls; where a template has the marks of several, the first is meant."""

    deepseek_v3 = ToolFormat(
        (
            HeadedCall(
                r"function<｜tool▁sep｜>(?P<name>[^\n]+)\n```json\n",
                "function<｜tool▁sep｜>{name}\n```json\n",
                ("<｜tool▁sep｜>",),
            ),
        ),
        opens=("<｜tool▁calls▁begin｜>",),
        call_open="<｜tool▁call▁begin｜>",
        tails=("```", "<｜tool▁call▁end｜>"),
        closes="<｜tool▁calls▁end｜>",
        mark=r"(?s)<｜tool▁sep｜>.*```json",
    )
    deepseek_v31 = ToolFormat(
        (
            HeadedCall(
                r"(?P<name>[^<]+)<｜tool▁sep｜>\s*", "{name}<｜tool▁sep｜>", ("<｜tool▁sep｜>",)
            ),
        ),
        opens=("<｜tool▁calls▁begin｜>",),
        call_open="<｜tool▁call▁begin｜>",
        tails=("<｜tool▁call▁end｜>",),
        closes="<｜tool▁calls▁end｜>",
        mark="<｜tool▁calls▁begin｜>",
    )
    gpt_oss = ToolFormat(
        (
            HeadedCall(
                r"(?P<name>[^\s<]+)\s*(?:<\|channel\|>(?:commentary|analysis))?\s*"
                r"(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>\s*",
                "{name} <|constrain|>json<|message|>",
                ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
            ),
        ),
        opens=(
            "<|channel|>commentary to=functions.",
            "<|channel|>analysis to=functions.",
            "<|start|>assistant to=functions.",
        ),
        first_opens=("to=functions.",),
        closes="<|call|>",
        mark=r"<\|channel\|>commentary",
        ends_output=True,
    )
    openai = gpt_oss
    minimax_m2 = ToolFormat(
        (TaggedCall('"', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>"),),
        opens=("<minimax:tool_call>",),
        call_open='<invoke name="',
        closes="</minimax:tool_call>",
        mark="<minimax:tool_call>",
    )
    seed_oss = ToolFormat(
        (TaggedCall(">", ">", "<parameter=", ">", "", "</parameter>", "</function>"),),
        opens=("<seed:tool_call>",),
        call_open="<function=",
        closes="</seed:tool_call>",
        mark="<seed:tool_call>",
    )
    granite = ToolFormat(
        (_JSON,),
        opens=("<|tool_call|>",),
        is_list=True,
        writes_list=True,
        mark=r"<\|tool_call\|>",
    )
    jamba = ToolFormat(
        (_JSON,),
        opens=("<tool_calls>",),
        is_list=True,
        writes_list=True,
        closes="</tool_calls>",
        mark="<tool_calls>",
    )
    internlm = ToolFormat(
        (JsonCall(("parameters", "arguments")),),
        opens=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        closes="<|action_end|>",
        mark=r"<\|action_start\|>",
    )
    kimi_k2 = ToolFormat(
        (
            HeadedCall(
                r"\s*(?P<id>(?:functions\.)?(?P<name>[^:<]+)(?::\d+)?)\s*"
                r"<\|tool_call_argument_begin\|>\s*",
                "functions.{name}:{number}<|tool_call_argument_begin|>",
                ("<|tool_call_argument_begin|>",),
            ),
        ),
        opens=("<|tool_calls_section_begin|>",),
        call_open="<|tool_call_begin|>",
        tails=("<|tool_call_end|>",),
        closes="<|tool_calls_section_end|>",
        mark=r"<\|tool_calls_section_begin\|>",
    )
    mistral = ToolFormat(
        (
            _JSON,
            HeadedCall(
                r"(?P<name>[^\s\[{]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*",
                "{name}[ARGS]",
                ("[CALL_ID]", "[ARGS]"),
            ),
        ),
        opens=("[TOOL_CALLS]",),
        is_list=True,
        writes_list=True,
        mark=r"\[TOOL_CALLS\]",
        id_length=9,
    )
    glm45 = ToolFormat(
        (TaggedCall("\n<", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),),
        opens=("<tool_call>",),
        closes="</tool_call>",
        mark="<arg_key>",
    )
    qwen3_coder = ToolFormat(
        (TaggedCall(">", ">", "<parameter=", ">", "", "</parameter>", "</function>"),),
        opens=("<tool_call>",),
        call_open="<function=",
        closes="</tool_call>",
        mark="<function=",
    )
    hermes = ToolFormat(
        (_JSON,),
        opens=("<tool_call>",),
        is_list=True,
        closes="</tool_call>",
        mark="<tool_call>",
    )
    pythonic = ToolFormat(
        (PythonCall(),),
        opens=("<|python_start|>",),
        bare="[",
        is_list=True,
        writes_list=True,
        closes="<|python_end|>",
        mark=r"\[func_name1\(",
    )
    llama3_json = ToolFormat(
        (JsonCall(("parameters", "arguments")),),
        opens=("<|python_tag|>", "<|python_start|>"),
        bare="{[",
        is_list=True,
        separator=";",
        tails=("<|python_end|>",),
        mark=r'<\|python_tag\|>|"parameters": dictionary of argument name',
    )
    generic = ToolFormat(
        (_JSON,),
        first_opens=("```json", "```"),
        bare="{[",
        is_list=True,
        writes_list=True,
        closes="```",
        mark=r"(?!)",
        in_text=True,
    )


class ReasoningFormatName(Enum):
    """The formats of reasoning."""

    gpt_oss = ReasoningFormat(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        markup=(
            "<|start|>assistant",
            *(
                f"<|channel|>{channel}{kind}<|message|>"
                for channel in ("final", "commentary")
                for kind in ("", " json", "<|constrain|>json", " <|constrain|>json")
            ),
            "<|end|>",
            "<|return|>",
        ),
        specials=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
        next_opens="<|start|>assistant",
        answer_opens="<|channel|>final<|message|>",
        mark="<|channel|>analysis",
    )
    openai_gptoss = gpt_oss
    mistral = ReasoningFormat("[THINK]", "[/THINK]")
    seed_oss = ReasoningFormat("<seed:think>", "</seed:think>")
    think = ReasoningFormat("<think>", "</think>")
    deepseek_r1 = think
    glm45 = think
    qwen3 = think


def find_tool_format(template: str) -> ToolFormat | None:
    """Return the format whose mark the source of a chat template holds, None if none does."""
    formats = (name.value for name in ToolFormatName)
    return next((each for each in formats if re.search(each.mark, template)), None)


def find_reasoning_format(template: str) -> ReasoningFormat | None:
    """Return the format whose tags the source of a chat template holds, None if none does."""
    formats = (name.value for name in ReasoningFormatName)
    return next((each for each in formats if (each.mark or each.closes) in template), None)
