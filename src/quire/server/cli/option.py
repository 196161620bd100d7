"""What is said of one option of `quire serve`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

OptionValue: TypeAlias = str | int | float | bool | tuple[str, ...] | None


class ConfigSection(StrEnum):
    """The configuration class an option fills."""

    ENGINE = "engine"
    SERVER = "server"
    RESOLVED = "resolved"  # read by `settings.py`, no field of its own


@dataclass(frozen=True, slots=True)
class Option:
    """`field` names the configuration's field where it differs from the flag; `shown` is the
    default in words. A variable that is set but empty counts as not set; where the server would
    then be open to everyone, `guards` has it refused."""

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
