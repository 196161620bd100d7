"""The defaults of options, in words, and the table of docs/configuration.md."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from quire.engine.config import (
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RecordingConfig,
    SchedulingConfig,
    TracingConfig,
)
from quire.server.cli.option import ConfigSection, Option
from quire.server.cli.option_values import boolean
from quire.server.cli.options import OPTIONS
from quire.server.config import ServedModelConfig, ServerConfig

OWNERS: Mapping[ConfigSection, type] = MappingProxyType(
    {
        ConfigSection.MODEL: ModelConfig,
        ConfigSection.MEMORY: MemoryConfig,
        ConfigSection.SCHEDULING: SchedulingConfig,
        ConfigSection.TRACING: TracingConfig,
        ConfigSection.RECORDING: RecordingConfig,
        ConfigSection.PARALLEL: ParallelConfig,
        ConfigSection.SERVED_MODEL: ServedModelConfig,
        ConfigSection.SERVER: ServerConfig,
    }
)
"""The class that has an option's field and default."""


def shown_default(option: Option) -> str:
    if option.shown:
        return option.shown
    fields = dataclasses.fields(OWNERS[option.section])
    default = next(field.default for field in fields if field.name == option.target)
    if default is None:
        return "none"
    return str(default).lower() if isinstance(default, bool) else f"{default}"


def config_table() -> str:
    """Return the table of docs/configuration.md, in Markdown."""
    rows = ["| Flag | Variable | Default | What it does |", "|---|---|---|---|"]
    for option in OPTIONS:
        flag = f"`--{option.flag}`"
        if option.parse is boolean:
            flag += f", `--no-{option.flag}`"
        rows.append(f"| {flag} | `{option.variable}` | {shown_default(option)} | {option.help} |")
    return "\n".join(rows) + "\n"
