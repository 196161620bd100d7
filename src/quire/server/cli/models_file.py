"""Reads `--models-config-file`: the models of a server, a list in YAML of what flags say elsewhere.

- name: small
  model: /models/small
  max-model-len: 4096
- name: large
  model: org/large
  load: on-first-use
  unload-after-s: 600
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from quire.server.cli.option import ConfigSection, Option, OptionValue
from quire.server.cli.option_values import name_list, one_of, seconds, text
from quire.server.cli.options import OPTIONS
from quire.server.config import InvalidOption, LoadTime
from quire.server.suggestion import closest

OF_SERVER = frozenset(("otlp_traces_endpoint",))
"""Options of engines that one server has once."""
OF_MODEL = (
    Option("name", ConfigSection.RESOLVED, text, "Name that clients ask for."),
    Option("model", ConfigSection.RESOLVED, text, "Hugging Face id or local folder."),
    Option("served-model-name", ConfigSection.RESOLVED, name_list, "Further names."),
    Option("load", ConfigSection.SERVED_MODEL, one_of(*LoadTime), "When it is loaded."),
    Option(
        "unload-after-s",
        ConfigSection.SERVED_MODEL,
        seconds,
        "Seconds without a request after which it is unloaded.",
    ),
)
ENTRY_OPTIONS: Mapping[str, Option] = {
    option.flag: option
    for option in (
        *OF_MODEL,
        *(
            option
            for option in OPTIONS
            if option.section not in (ConfigSection.SERVER, ConfigSection.RESOLVED)
            and option.key not in OF_SERVER
        ),
    )
}
"""The keys that an entry may have."""


class Scalar(NamedTuple):
    """A text of the file, and the line that it is in."""

    text: str
    line: int


class ModelEntry(NamedTuple):
    """One model of the file: where it is told, and its options by key."""

    place: str
    values: Mapping[str, OptionValue]


def read_models_file(path: Path) -> tuple[ModelEntry, ...]:
    """Return the models of the file. Raises InvalidOption, which names the line."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"--models-config-file: cannot read {path}: {error}") from None
    entries = tuple(_read_entry(path, line, fields) for line, fields in _parse(path, content))
    if not entries:
        raise InvalidOption(f"--models-config-file: {path} has no models")
    return entries


def _read_entry(
    path: Path, line: int, fields: list[tuple[Scalar, list[Scalar] | Scalar]]
) -> ModelEntry:
    values: dict[str, OptionValue] = {}
    for key, value in fields:
        place = f"{path}:{key.line}"
        option = ENTRY_OPTIONS.get(key.text)
        if option is None:
            meant = closest(key.text, ENTRY_OPTIONS)
            hint = f"did you mean {meant}?" if meant else "a model has the flags of an engine"
            raise InvalidOption(f"{place}: unknown key {key.text!r}; {hint}")
        if option.key in values:
            raise InvalidOption(f"{place}: {key.text} is given twice")
        values[option.key] = _value(option, value, place)
    if "model" not in values:
        raise InvalidOption(f"{path}:{line}: the model has no key 'model'")
    return ModelEntry(f"{path}:{line}", values)


def _value(option: Option, given: list[Scalar] | Scalar, place: str) -> OptionValue:
    try:
        if isinstance(given, Scalar):
            return option.parse(given.text)
        if option.parse is not name_list:
            raise ValueError("takes one value, not a list")
        return tuple(text(each.text).strip() for each in given)
    except ValueError as error:
        raise InvalidOption(f"{place}: {option.flag}: {error}") from None


def _parse(
    path: Path, content: str
) -> Iterator[tuple[int, list[tuple[Scalar, list[Scalar] | Scalar]]]]:
    """Yield the line and the keys of each entry, values as the texts that they are written as."""
    import yaml  # type: ignore[import-untyped]  # late: few servers have such a file

    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InvalidOption(f"--models-config-file: {path} is not valid YAML: {error}") from None
    if root is None or not isinstance(root, yaml.SequenceNode):
        raise InvalidOption(f"--models-config-file: {path} must be a list of models")

    def scalar(node: yaml.Node) -> Scalar:
        if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:null":
            raise InvalidOption(f"{path}:{node.start_mark.line + 1}: expected a value")
        return Scalar(node.value, node.start_mark.line + 1)

    for entry in root.value:
        line = entry.start_mark.line + 1
        if not isinstance(entry, yaml.MappingNode):
            raise InvalidOption(f"{path}:{line}: a model is told by keys, as `model: FOLDER`")
        yield (
            line,
            [
                (
                    scalar(key),
                    [scalar(each) for each in value.value]
                    if isinstance(value, yaml.SequenceNode)
                    else scalar(value),
                )
                for key, value in entry.value
            ],
        )
