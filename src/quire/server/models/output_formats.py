"""Finds the formats in which a model writes what is more than text, and says which was found."""

from typing import NamedTuple

from quire.server.config import AUTO, NO_PARSER, ServedModelConfig
from quire.server.parsers.formats import (
    ReasoningFormat,
    ReasoningFormatName,
    ToolFormat,
    ToolFormatName,
    find_reasoning_format,
    find_tool_format,
)
from quire.server.text.chat_template import ChatTemplate


class OutputFormats(NamedTuple):
    """The formats in which the model writes tool calls and reasoning; None if not known."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None

    @property
    def tools_name(self) -> str | None:
        """The name of the format of tool calls."""
        return None if self.tools is None else ToolFormatName(self.tools).name


def output_formats(config: ServedModelConfig, template: ChatTemplate | None) -> OutputFormats:
    """Return the formats that the configuration names, or that the chat template shows."""
    tools, reasoning = config.tool_call_parser, config.reasoning_parser
    return OutputFormats(
        _shown_tool_format(template)
        if tools == AUTO
        else None
        if tools == NO_PARSER
        else ToolFormatName[tools].value,
        find_reasoning_format("" if template is None else template.source)
        if reasoning == AUTO
        else None
        if reasoning == NO_PARSER
        else ReasoningFormatName[reasoning].value,
    )


def _shown_tool_format(template: ChatTemplate | None) -> ToolFormat | None:
    """Return the format that a template shows, the generic one where it has no place for tools or
    shows no known format, and None without a template."""
    if template is None:
        return None
    shown = find_tool_format(template.source) if template.takes_tools else None
    return shown or ToolFormatName.generic.value


def describe_tool_calls(formats: OutputFormats) -> str:
    """Return in which format a model is told of tools and calls them, in words for the log."""
    if formats.tools is None:
        return "tools are not taken (--tool-call-parser none)"
    if formats.tools.in_text:
        return (
            f"tool calls: the {formats.tools_name} format, not one of the model's own: tools are "
            "described in the system's text, and calls are a JSON list"
        )
    return f"tool calls: the format {formats.tools_name}"
