"""Builds a ServerConfig from flags and environment. A flag beats its variable, which beats the
default.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from quire.scheduler.policy import PolicyName
from quire.server.cli.config_table import shown_default
from quire.server.cli.option import ConfigSection, Option, OptionValue
from quire.server.cli.option_values import (
    alias_list,
    boolean,
    host_list,
    key_list,
    model_list,
    name_list,
    origin_list,
    text,
)
from quire.server.cli.options import OPTIONS
from quire.server.cli.served_models import model_aliases, section_of, served_models
from quire.server.config import CertReqs, InvalidOption, ServerConfig
from quire.server.suggestion import closest
from quire.server.tenancy.api_keys import read_api_keys

PLAIN_LISTS = (alias_list, key_list, name_list, model_list)
"""Parsers of lists whose elements may hold a comma where they are given as flags."""
SERVING = (ConfigSection.SERVER, ConfigSection.SERVED_MODEL, ConfigSection.RESOLVED)
WITHOUT_HTTP = frozenset(
    (
        *("model", "served_model_name", "max_body_bytes", "generation_config"),
        *("log_level", "log_format"),
        *("tool_call_parser", "reasoning_parser", "max_logprobs"),
        *("trust_request_chat_template", "disable_any_whitespace", "unknown_fields"),
    )
)
"""Options of these sections that have a meaning without HTTP."""
LISTS = (*PLAIN_LISTS, origin_list, host_list)


PLANNED = (ConfigSection.MODEL, ConfigSection.MEMORY, ConfigSection.SCHEDULING)
NOT_PLANNED = frozenset(("device", "pooling", "tensor_parallel_size"))
"""Options of these sections that a plan has not, or has otherwise."""


def _action(option: Option) -> str:
    return "append" if option.parse in LISTS else "store"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags, without defaults: what is not given can still come from the environment."""
    _add(parser, OPTIONS)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that tell where there is no HTTP: those of the engine, and how text is read and
    written."""
    _add(parser, [o for o in OPTIONS if o.section not in SERVING or o.key in WITHOUT_HTTP])


def add_planned_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that decide what an engine takes and how fast it is, but for its device."""
    _add(parser, [o for o in OPTIONS if o.section in PLANNED and o.key not in NOT_PLANNED])


def _add(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    for option in options:
        if option.parse is boolean:
            parser.add_argument(
                f"--{option.flag}",
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=option.help,
            )
            continue
        parser.add_argument(
            f"--{option.flag}",
            dest=option.key,
            metavar="VALUE",
            action=_action(option),
            default=argparse.SUPPRESS,
            help=f"{option.help} [{shown_default(option)}]",
        )


def parse_values(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, OptionValue]:
    """Return the options that were given, by key. InvalidOption names the flag or the variable."""
    values: dict[str, OptionValue] = {}
    for option in OPTIONS:
        if option.key in flags:
            values[option.key] = _from_flag(option, flags[option.key])
        elif environ.get(option.variable):
            values[option.key] = _parse(option.parse, environ[option.variable], option.variable)
        elif option.guards and option.variable in environ:
            raise InvalidOption(
                f"{option.variable} is set but empty, which would leave what it guards open to "
                "everyone: give it a value, or unset it"
            )
    return values


def _from_flag(option: Option, given: object) -> OptionValue:
    if isinstance(given, bool):
        return given
    if isinstance(given, list):
        parse = text if option.parse in PLAIN_LISTS else option.parse
        parsed = [_parse(parse, each, f"--{option.flag}") for each in given]
        return tuple(str(part).strip() for each in parsed for part in _several(each))
    return _parse(option.parse, str(given), f"--{option.flag}")


def _several(value: OptionValue) -> tuple[OptionValue, ...]:
    return value if isinstance(value, tuple) else (value,)


def _parse(parse: Callable[[str], OptionValue], given: str, source: str) -> OptionValue:
    try:
        return parse(given)
    except ValueError as error:
        raise InvalidOption(f"{source}: {error}") from None


def read_config(arguments: Mapping[str, object], environ: Mapping[str, str]) -> ServerConfig:
    """Return the configuration of arguments and environment. Raises InvalidOption."""
    flags = dict(arguments)
    model = flags.pop("positional_model", None)
    if model is not None and flags.get("model") not in (None, [model]):
        raise InvalidOption(
            f"MODEL is given twice: {model} and --model {flags['model']}; for several models "
            "repeat --model"
        )
    if model is not None:
        flags["model"] = [model]
    return build_config(parse_values(flags, environ))


def as_flag(value: object) -> object:
    """Return an option's value that a program gives as the command line would have it."""
    return value if isinstance(value, bool | list) else str(value)


def is_given(option: Option, arguments: Mapping[str, object], environ: Mapping[str, str]) -> bool:
    """Return whether an option is given, as a flag or as a variable."""
    return option.key in arguments or bool(environ.get(option.variable))


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each `QUIRE_*` variable that no option reads: perhaps a typing error."""
    known = [option.variable for option in OPTIONS]
    for name in sorted(environ):
        if name.startswith("QUIRE_") and name not in known:
            meant = closest(name, known)
            hint = f"; did you mean {meant}?" if meant else ""
            yield f"{name} is set but no option reads it{hint}"


def build_config(values: Mapping[str, OptionValue]) -> ServerConfig:
    """Build the configuration of the options that were given. Raises InvalidOption."""
    api_keys = read_api_keys(_strings(values, "api_key"), _path(values, "api_key_file"))
    server = section_of(values, ConfigSection.SERVER)
    models = served_models(values)
    resolved = {
        "models": models,
        "model_aliases": model_aliases(values, models),
        "api_keys": api_keys,
    }
    config = msgspec.convert({**server, **resolved}, ServerConfig)
    _check(config)
    return config


def _check(config: ServerConfig) -> None:
    """Check what no option can tell by itself. Raises InvalidOption."""
    _check_tls(config)
    _check_replicas(config)
    _check_engines(config)
    _check_transfer(config)
    _check_priority_targets(config)
    if config.admin_key in [each.key for each in config.api_keys]:
        raise InvalidOption(
            "--admin-key is one of the API keys too: give it a key that no client has"
        )
    if config.max_half_read_bytes < config.max_body_bytes:
        raise InvalidOption(
            f"--max-half-read-bytes is {config.max_half_read_bytes}, less than --max-body-bytes, "
            f"{config.max_body_bytes}: no body of that size could be read"
        )


def _check_replicas(config: ServerConfig) -> None:
    """Check which options go with replicas. Raises InvalidOption."""
    most, fewest = config.max_replicas, config.replicas or 1
    if most is not None and most < fewest:
        raise InvalidOption(f"--max-replicas is {most}, less than --replicas, {fewest}")
    if not config.has_replicas:
        return
    for model in config.models:
        if model.engine.tracing.enable_kv_cache_events:
            raise InvalidOption(
                "--enable-kv-cache-events tells of the blocks of one engine, and --replicas has "
                "several: leave one of them out"
            )
        if model.engine.model.tensor_parallel_size > 1:
            raise InvalidOption(
                "--tensor-parallel-size divides a model among processes of this machine, and "
                "--replicas has it whole on each: leave one of them out"
            )


def _check_engines(config: ServerConfig) -> None:
    """Check which options go with several engines of a model. Raises InvalidOption."""
    for engine in (model.engine for model in config.models):
        size = engine.parallel.data_parallel_size
        if size == 1:
            continue
        refused = {
            "--replicas starts engines too": config.has_replicas,
            "--enable-kv-cache-events tells of the blocks of one": (
                engine.tracing.enable_kv_cache_events
            ),
            "--kv-transfer-listen is where one can listen": (
                engine.memory.kv_transfer_listen is not None
            ),
        }
        for what, is_given in refused.items():
            if is_given:
                raise InvalidOption(
                    f"--data-parallel-size is {size} engines, and {what}: leave one of them out"
                )


def _check_transfer(config: ServerConfig) -> None:
    """Check that each engine listens at an address of its own. Raises InvalidOption."""
    memories = [model.engine.memory for model in config.models]
    listening = [
        each.kv_transfer_listen for each in memories if each.kv_transfer_listen is not None
    ]
    if listening and config.has_replicas:
        raise InvalidOption(
            f"--kv-transfer-listen is {listening[0]}, where one engine can listen, and --replicas "
            "has several: leave one of them out"
        )
    twice = next((each for each in listening if listening.count(each) > 1), None)
    if twice is not None:
        raise InvalidOption(
            f"--kv-transfer-listen is {twice} for several models, and one engine can listen there: "
            "give each model its own in --models-config-file"
        )


def _check_priority_targets(config: ServerConfig) -> None:
    """Check that priorities which have targets are looked at. Raises InvalidOption."""
    for scheduling in (model.engine.scheduling for model in config.models):
        policy = scheduling.scheduling_policy
        if scheduling.priority_targets and policy is not PolicyName.PRIORITY:
            raise InvalidOption(
                f"--priority-targets is given, but --scheduling-policy is {policy}, which looks at "
                "no priorities: it must be priority"
            )


def _check_tls(config: ServerConfig) -> None:
    """Check which options of TLS go together. Raises InvalidOption."""
    given = {
        "--ssl-keyfile": config.ssl_keyfile,
        "--ssl-keyfile-password": config.ssl_keyfile_password,
        "--ssl-ca-certs": config.ssl_ca_certs,
        "--ssl-cert-reqs": config.ssl_cert_reqs is not CertReqs.NONE or None,
    }
    alone = [option for option, value in given.items() if value is not None]
    if alone and config.ssl_certfile is None:
        raise InvalidOption(f"{alone[0]} is given without --ssl-certfile")
    if config.ssl_cert_reqs is not CertReqs.NONE and config.ssl_ca_certs is None:
        raise InvalidOption(
            f"--ssl-cert-reqs is {config.ssl_cert_reqs}: --ssl-ca-certs is to say whose "
            "certificates are taken"
        )


def _strings(values: Mapping[str, OptionValue], key: str) -> tuple[str, ...]:
    given = values.get(key)
    texts = given if isinstance(given, tuple) else ()
    return tuple(each for each in texts if isinstance(each, str))


def _path(values: Mapping[str, OptionValue], key: str) -> str | None:
    given = values.get(key)
    return given if isinstance(given, str) else None
