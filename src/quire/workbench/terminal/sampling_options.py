"""The options of sampling that a chat can set, and their ranges, which a caller brings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class NumberRule:
    """The numbers that an option takes, both ends included unless said otherwise; an end that is
    None is open."""

    is_whole: bool
    least: float | None = None
    most: float | None = None
    is_least_excluded: bool = False

    def __str__(self) -> str:
        """Say which numbers these are, for people."""
        kind = "a whole number" if self.is_whole else "a number"
        above = "above" if self.is_least_excluded else "of at least"
        bounds = [] if self.least is None else [f"{above} {self.least:g}"]
        bounds += [] if self.most is None or self.most >= 2**62 else [f"at most {self.most:g}"]
        return " ".join((kind, " and ".join(bounds))).rstrip()

    def read(self, text: str) -> int | float | None:
        """Return the number that a text is, None if it is none of these."""
        try:
            number = int(text) if self.is_whole else float(text)
        except ValueError:
            return None
        if isinstance(number, float) and not math.isfinite(number):
            return None
        if self.most is not None and number > self.most:
            return None
        if self.least is None or number > self.least:
            return number
        return number if number == self.least and not self.is_least_excluded else None


class WrongOption(Exception):
    """An option is unknown or its value wrong; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """The options by name, with the numbers that each takes."""

    rules: Mapping[str, NumberRule]

    def read(self, name: str, value: str) -> int | float:
        """Return the value of an option. Raises WrongOption."""
        rule = self.rule(name)
        number = rule.read(value)
        if number is None:
            raise WrongOption(f"{name} is {rule}, not {value!r}")
        return number

    def rule(self, name: str) -> NumberRule:
        """Return the rule of an option. Raises WrongOption if there is none of that name."""
        if name not in self.rules:
            raise WrongOption(f"there is no option {name!r}; there are {', '.join(self.rules)}")
        return self.rules[name]


def rules_of_schema(schema: Mapping[str, object], names: Sequence[str]) -> SamplingRules:
    """Return the rules of some properties of a JSON schema of an object. Raises ValueError where
    one is no number."""
    properties = schema["properties"]
    assert isinstance(properties, Mapping)
    return SamplingRules(MappingProxyType({name: _rule(properties[name]) for name in names}))


def _rule(described: Mapping[str, object]) -> NumberRule:
    forms = described.get("anyOf", [described])
    assert isinstance(forms, Sequence)
    for form in forms:
        if form["type"] in ("integer", "number"):
            excluded = form.get("exclusiveMinimum")
            return NumberRule(
                is_whole=form["type"] == "integer",
                least=form.get("minimum", excluded),
                most=form.get("maximum"),
                is_least_excluded=excluded is not None,
            )
    raise ValueError(f"no number: {described}")
