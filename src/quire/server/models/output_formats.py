"""Finds the formats in which a model writes what is more than text."""

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


class OutputFormats(NamedTuple):
    """The formats in which the model writes tool calls and reasoning; None if not known."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None


def output_formats(config: ServedModelConfig, template: str) -> OutputFormats:
    """Return the formats that the configuration names, or that the chat template shows."""
    tools, reasoning = config.tool_call_parser, config.reasoning_parser
    return OutputFormats(
        find_tool_format(template)
        if tools == AUTO
        else None
        if tools == NO_PARSER
        else ToolFormatName[tools].value,
        find_reasoning_format(template)
        if reasoning == AUTO
        else None
        if reasoning == NO_PARSER
        else ReasoningFormatName[reasoning].value,
    )
