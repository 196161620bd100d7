"""Builds the configurations of the models of a server, from flags or from a file of models."""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import msgspec

from quire.engine.config import EngineConfig, check_options
from quire.server.cli.memory_shares import with_shares
from quire.server.cli.models_file import OF_MODEL, read_models_file
from quire.server.cli.option import ConfigSection, Option, OptionValue
from quire.server.cli.options import OPTIONS
from quire.server.config import (
    BUNDLED,
    BUNDLED_MODEL_NAME,
    InvalidOption,
    ModelAlias,
    ServedModelConfig,
)

MEMORY_SIZES = frozenset(
    (
        *("gpu_memory_utilization", "kv_cache_memory_bytes"),
        *("kv_cache_tokens", "num_gpu_blocks_override"),
    )
)
"""The ways to say how large KV memory shall be: a model's own one replaces that of the flags."""
FILE = "models_config_file"


class _Model(NamedTuple):
    """A model, where it is told, and all options that are its own."""

    place: str
    names: tuple[str, ...]
    values: Mapping[str, OptionValue]


def served_models(values: Mapping[str, OptionValue]) -> tuple[ServedModelConfig, ...]:
    """Return the models of the options that were given. Raises InvalidOption."""
    models = _from_file(values) if FILE in values else _from_flags(values)
    _check_names(models)
    configs = {model.names[0]: _config(model) for model in models}
    engines = with_shares({name: config.engine for name, config in configs.items()})
    if len(engines) > 1:
        engines = {name: _with_log_name(engine, name) for name, engine in engines.items()}
    return tuple(
        dataclasses.replace(config, engine=engines[name]) for name, config in configs.items()
    )


def _with_log_name(engine: EngineConfig, name: str) -> EngineConfig:
    """Let the lines that the engine logs tell whose they are."""
    tracing = dataclasses.replace(engine.tracing, log_name=f"engine of {name}")
    return dataclasses.replace(engine, tracing=tracing)


def section_of(values: Mapping[str, OptionValue], section: ConfigSection) -> dict[str, OptionValue]:
    """Return the values of one section of the configuration, by its fields."""
    options: tuple[Option, ...] = (*OPTIONS, *OF_MODEL)
    return {o.target: values[o.key] for o in options if o.section is section and o.key in values}


def _from_flags(values: Mapping[str, OptionValue]) -> list[_Model]:
    """Return the models that `--model` names, each with the same options."""
    given = _strings(values, "model")
    names = _strings(values, "served_model_name")
    if len(given) > 1:
        for key in ("served_model_name", "revision"):
            if key in values:
                flag = f"--{key.replace('_', '-')}"
                raise InvalidOption(
                    f"{flag} is of one model, but --model is given {len(given)} times: tell the "
                    "models by --models-config-file"
                )
        return [
            _Model("--model", (_public_name(model),), {**values, "model": model}) for model in given
        ]
    model = given[0] if given else BUNDLED
    return [_Model("", names or (_public_name(model),), {**values, "model": model})]


def _from_file(values: Mapping[str, OptionValue]) -> list[_Model]:
    """Return the models of the file; flags are options of all of them that say nothing else."""
    for key in ("model", "served_model_name", "revision"):
        if key in values:
            flag = f"--{key.replace('_', '-')}"
            raise InvalidOption(f"{flag} and --models-config-file both tell models: give one")
    return [
        _Model(entry.place, _names(entry.values), _with_flags(entry.values, values))
        for entry in read_models_file(Path(str(values[FILE])))
    ]


def _names(values: Mapping[str, OptionValue]) -> tuple[str, ...]:
    own = values.get("name")
    first = () if own is None else (str(own),)
    return (*first, *_strings(values, "served_model_name")) or (_public_name(str(values["model"])),)


def _public_name(model: str) -> str:
    """Return the name of a model that is given none."""
    return BUNDLED_MODEL_NAME if model == BUNDLED else model


def _with_flags(
    own: Mapping[str, OptionValue], flags: Mapping[str, OptionValue]
) -> Mapping[str, OptionValue]:
    says_size = any(key in own for key in MEMORY_SIZES)
    left_out = MEMORY_SIZES if says_size else frozenset[str]()
    return {**{key: value for key, value in flags.items() if key not in left_out}, **own}


def _check_names(models: list[_Model]) -> None:
    """Refuse two models of one name: clients could ask for neither."""
    places: dict[str, str] = {}
    for model in models:
        for name in model.names:
            if name in places:
                raise InvalidOption(
                    f"{model.place}: the name {name!r} is given twice, first by {places[name]}"
                    if model.place != places[name]
                    else f"{model.place}: the name {name!r} is given twice"
                )
            places[name] = model.place


def model_aliases(
    values: Mapping[str, OptionValue], models: Sequence[ServedModelConfig]
) -> tuple[ModelAlias, ...]:
    """Return the aliases of the options that were given, whose models are `models`. Raises
    InvalidOption."""
    served = [name for model in models for name in model.served_model_names]
    aliases: list[ModelAlias] = []
    for given in _strings(values, "model_alias"):
        pattern, equals, name = (part.strip() for part in given.partition("="))
        if not (pattern and equals and name):
            raise InvalidOption(
                f"--model-alias: expected PATTERN=NAME, such as claude-*={served[0]}, got {given!r}"
            )
        if name not in served:
            raise InvalidOption(
                f"--model-alias: {given!r} is for {name!r}, which is not served; this server has "
                f"{', '.join(served)}"
            )
        if pattern in served:
            raise InvalidOption(
                f"--model-alias: {pattern!r} is the name of a model that is served, which requests "
                "for it are for"
            )
        aliases.append(ModelAlias(pattern, name))
    return tuple(aliases)


def _config(model: _Model) -> ServedModelConfig:
    values = model.values
    engine: dict[str, dict[str, OptionValue]] = {
        group.name: section_of(values, ConfigSection(group.name))
        for group in dataclasses.fields(EngineConfig)
        if group.name in set(ConfigSection)
    }
    is_bundled = values["model"] == BUNDLED
    engine["model"]["model"] = (
        str(files("quire.models") / BUNDLED) if is_bundled else values["model"]
    )
    for name in ("log_level", "log_format"):
        if name in values:
            engine["tracing"][name] = values[name]
    served = section_of(values, ConfigSection.SERVED_MODEL)
    config = msgspec.convert(
        {**served, "engine": engine, "served_model_names": model.names}, ServedModelConfig
    )
    try:
        _check(config.engine)
    except ValueError as error:
        raise InvalidOption(f"{model.place}: {error}" if model.place else str(error)) from None
    return config


def _check(engine: EngineConfig) -> None:
    """Raise ValueError for what no option can tell by itself."""
    check_options(engine)
    source = engine.model
    if source.revision is not None and Path(source.model).is_dir():
        raise ValueError(
            f"--revision is {source.revision}, but {source.model} is a local folder, which has no "
            "revisions: leave it out"
        )


def _strings(values: Mapping[str, OptionValue], key: str) -> tuple[str, ...]:
    given = values.get(key)
    texts = given if isinstance(given, tuple) else ()
    return tuple(each for each in texts if isinstance(each, str))
