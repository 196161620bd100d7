"""The description of one option of `quire serve`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from quire.engine.config import PriorityTargets

OptionValue: TypeAlias = (
    str
    | int
    | float
    | bool
    | PriorityTargets
    | tuple[str, ...]
    | tuple[PriorityTargets, ...]
    | None
)


class ConfigSection(StrEnum):
    """The part of the configuration that an option fills: the group of EngineConfig of that name,
    or ServedModelConfig, or ServerConfig. RESOLVED options have no field of their own;
    `settings.py` reads them."""

    MODEL = "model"
    MEMORY = "memory"
    SCHEDULING = "scheduling"
    TRACING = "tracing"
    RECORDING = "recording"
    PARALLEL = "parallel"
    SERVED_MODEL = "served_model"
    SERVER = "server"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flag, the section of the configuration that it fills, its parser and help.

    field: the configuration's field where it differs from the flag.
    shown: the default in words.
    guards: a variable that is set but empty is refused, since what it guards would be open to
        everyone; that of any other option counts as not set.
    """

    flag: str
    section: ConfigSection
    parse: Callable[[str], OptionValue]
    help: str
    field: str = ""
    shown: str = ""
    guards: bool = False

    @property
    def key(self) -> str:
        return self.flag.replace("-", "_")

    @property
    def variable(self) -> str:
        return "QUIRE_" + self.key.upper()

    @property
    def target(self) -> str:
        return self.field or self.key
