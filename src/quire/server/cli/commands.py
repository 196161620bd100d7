"""The commands of `quire`. Arguments and environment are read here alone."""

import logging
import os
import random
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from quire.engine.config import TOY_MODEL, LogFormat, ModelConfig
from quire.engine.grammar.tokenizer_facts import TokenizerError
from quire.engines.local.configs import engine_configs
from quire.engines.process.engine_starter import EngineStarter
from quire.extras import how_to_install
from quire.logs import JsonFormatter
from quire.models.config import CheckpointError, UnsupportedModel
from quire.models.loading.checkpoint import ModelSource, check_local
from quire.process_age import uncollected
from quire.progress import log_format
from quire.server.app.exit_codes import FAILED_START, USAGE_ERROR
from quire.server.app.notifier import Notifier
from quire.server.cli.arguments import build_parser, unknown_flag
from quire.server.cli.config_table import config_table
from quire.server.cli.default_model import with_default_model
from quire.server.cli.options import OPTIONS
from quire.server.cli.output import print_line
from quire.server.cli.settings import is_given, read_config, unknown_variables
from quire.server.cli.systemd import inherited_socket, notify_target
from quire.server.config import InvalidOption, LoadTime, ServerConfig
from quire.server.http.host_names import exposure_warning
from quire.server.http.listen import CannotListen, bind, url_of
from quire.server.http.tls import TLSError, build_tls
from quire.server.tenancy.tenants import lost_blocks_warning
from quire.server.text.tokenizer_files import find_folder
from quire.version import __version__
from quire.workbench.bench.options import read_options, split_serve_args

if TYPE_CHECKING:
    from quire.engines.protocol import OpenEngine

logger = logging.getLogger(__name__)

SPIN_COUNT = "2000"
"""The number of times that a model thread spins before it sleeps: a tenth of a millisecond. OpenMP
itself would spin a hundred times as long, and beside other work a step would then wait for whole
time slices (decision 0008)."""
FOR_PEOPLE = ("chat", "top", "doctor")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def calm_threads(environ: MutableMapping[str, str]) -> None:
    """Keep waiting threads of the engine process from holding a core, unless the user has
    chosen."""
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def serve_command(arguments: Mapping[str, object], environ: MutableMapping[str, str]) -> int:
    inherited = inherited_socket(environ, os.getpid())
    notifier = Notifier(notify_target(environ, os.getpid()))
    config = read_config(arguments, environ)
    if inherited is not None:
        config = on_inherited(inherited, arguments, environ, config)
    check_replicas(config)
    begin_log(config, environ)
    for warning in (exposure_warning(config), lost_blocks_warning(config)):
        if warning is not None:
            logger.warning(warning)
    try:
        tls = build_tls(config)
        listener = inherited or bind(config.host, config.port)
    except (TLSError, CannotListen) as error:
        raise InvalidOption(str(error)) from None
    config = with_default_model(config, arguments, environ)
    if not all(is_model("serve", each.engine.model) for each in config.models):
        return FAILED_START
    where = url_of(listener, config.scheme)
    print_line(f"Quire {__version__} listens on {where} and {will_load(config)}")
    if config.has_replicas:
        return run_with_replicas(config, environ, partial(_run, config, listener, tls, notifier))
    return run_with_engines(config, partial(_run, config, listener, tls, notifier))


def _run(
    config: ServerConfig,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    notifier: Notifier,
    open_engine: "OpenEngine",
) -> int:
    from quire.server.app.serve import run

    return run(config, listener, open_engine, tls, notifier)


def run_with_engines(config: ServerConfig, run: Callable[["OpenEngine"], int]) -> int:
    """Run a server whose engines are processes of its own. Return the exit code."""
    starter = EngineStarter(
        has_standby=config.supervision.engine_standby,
        runs_own_code=any(each.engine.model.trust_remote_code for each in config.models),
    )
    with closing(starter):
        try:
            for each in config.models:
                if each.load is LoadTime.AT_START:
                    for engine in engine_configs(each.engine):
                        starter.launch_ahead(engine)
        except OSError as error:
            logger.error("cannot start: the engine process cannot be run: %s", error)
            return FAILED_START
        with uncollected():  # a web server takes a while, and `quire --help` needs none
            from quire.engines.opener import opener

        return run(opener(config.supervision, starter))


def run_with_replicas(
    config: ServerConfig, environ: Mapping[str, str], run: Callable[["OpenEngine"], int]
) -> int:
    """Run a server whose engines are replicas on Ray Serve. Return the exit code."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # lines of several replicas are alike
    with uncollected():
        from quire.engines.ray.ray_log import json_on_stderr
        from quire.server.app.replicas import cluster_of, opener_in

    cluster = cluster_of(config, environ.get("RAY_ADDRESS"))
    is_json = config.log_format is LogFormat.JSON
    with json_on_stderr() if is_json else nullcontext():
        try:
            cluster.connect()
        except (ConnectionError, RuntimeError, ValueError) as error:
            logger.error("cannot start: Ray cannot be reached or started: %s", error)
            return FAILED_START
        with closing(cluster):
            return run(opener_in(cluster, config))


def check_replicas(config: ServerConfig) -> None:
    """Raise InvalidOption where the configuration wants Ray and it is not installed."""
    if config.has_replicas and find_spec("ray") is None:
        raise InvalidOption(
            f"--replicas wants Ray Serve, which is not installed: {how_to_install('ray')}"
        )


def on_inherited(
    listener: socket.socket,
    arguments: Mapping[str, object],
    environ: Mapping[str, str],
    config: ServerConfig,
) -> ServerConfig:
    """Return the configuration of a server that listens on an inherited socket. Raises
    InvalidOption where an address is given too."""
    for option in OPTIONS:
        if option.key in ("host", "port"):
            given = f"--{option.flag}" if option.key in arguments else option.variable
            if is_given(option, arguments, environ):
                raise InvalidOption(
                    f"{given} is given, but the server listens on the socket that it inherited "
                    f"(LISTEN_FDS), {url_of(listener, config.scheme)}: leave it out"
                )
    host, port = listener.getsockname()[:2]
    return replace(config, host=host, port=port, is_socket_inherited=True)


def will_load(config: ServerConfig) -> str:
    """Return a phrase of the models by when they are loaded."""

    def names(load: LoadTime) -> str:
        models = [each for each in config.models if each.load is load]
        return ", ".join(name for each in models for name in each.served_model_names)

    now, later = names(LoadTime.AT_START), names(LoadTime.ON_FIRST_USE)
    loads = f"loads {now}" if now else "loads no model yet"
    return f"{loads}; on first use {later}" if later else loads


def batch_command(arguments: Mapping[str, object], environ: Mapping[str, str]) -> int:
    config = read_config(arguments, environ)
    begin_log(config, environ)
    if len(config.models) > 1:
        raise InvalidOption("--model names several models, but a batch file is run on one")
    if not is_model("run-batch", config.model.engine.model):
        return FAILED_START
    from quire.server.cli.run_batch import run_batch  # a web framework takes a while to import

    return run_batch(arguments, config)


def begin_log(config: ServerConfig, environ: Mapping[str, str]) -> None:
    """Log as the configuration says, first of all which variables nothing reads."""
    logging.basicConfig(level=config.log_level.upper(), format=log_format(sys.stderr, LOG_FORMAT))
    if config.log_format is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    logging.getLogger("uvicorn").setLevel("WARNING")
    for warning in unknown_variables(environ):
        logger.warning(warning)


def is_model(command: str, config: ModelConfig) -> bool:
    """Return whether the files of the model, if it is local, can be served; say why not."""
    try:
        check_model(config)
    except (CheckpointError, TokenizerError, UnsupportedModel) as error:
        print(f"quire {command}: {error}", file=sys.stderr)
        return False
    return True


def check_model(config: ModelConfig) -> None:
    """Check the files of a local model before anything heavy is imported. Raises CheckpointError,
    UnsupportedModel or TokenizerError."""
    if config.model == TOY_MODEL:
        return
    folder = check_local(ModelSource(config.model, config.revision, config.trust_remote_code))
    if folder is not None:
        find_folder(config.model, config.revision)


def bench_command(
    arguments: Mapping[str, object], serve_args: tuple[str, ...], argv: Sequence[str]
) -> int:
    # Imported here: `quire serve` needs none of it.
    from quire.output_files import check_plotting
    from quire.workbench.bench.command import Invocation, read_addresses, run

    try:
        options = read_options(arguments, serve_args)
        addresses = read_addresses(options)
        if options.plot_path is not None:
            check_plotting()
    except ValueError as error:
        print(f"quire bench: {error}", file=sys.stderr)
        return USAGE_ERROR
    return run(Invocation(options, addresses, tuple(argv), random.SystemRandom().getrandbits(32)))


def plan_command(arguments: Mapping[str, object], environ: Mapping[str, str]) -> int:
    from quire.server.cli.plan import run_plan  # imports torch

    return run_plan(arguments, environ)


def command_for_people(
    command: str, arguments: Mapping[str, object], serve_args: tuple[str, ...]
) -> int:
    """Run a command for a person at a terminal. What each imports the others need not have."""
    if command == "chat":
        from quire.server.cli.terminal.chat import chat_command

        return chat_command(arguments, serve_args, os.environ)
    if command == "top":
        from quire.server.cli.terminal.top import top_command

        return top_command(arguments, os.environ)
    from quire.server.cli.terminal.doctor import doctor_command

    calm_threads(os.environ)
    return doctor_command(arguments, os.environ)


def run_command(argv: Sequence[str]) -> int:
    own_argv, serve_args = split_serve_args(argv)
    fault = unknown_flag(own_argv)
    if fault is not None:
        print(fault, file=sys.stderr)
        return USAGE_ERROR
    arguments = vars(build_parser().parse_args(own_argv))
    command = arguments.pop("command")
    if command == "config-table":
        print(config_table(), end="")
        return 0
    if command == "replay":
        from quire.server.cli.replay import replay_command

        return replay_command(arguments)
    if command == "sim":
        from quire.server.cli.sim import sim_command

        return sim_command(arguments)
    if command in FOR_PEOPLE:
        return command_for_people(command, arguments, serve_args)
    if command == "bench":
        return bench_command(arguments, serve_args, argv)
    calm_threads(os.environ)
    commands = {"run-batch": batch_command, "plan": plan_command}
    run = commands.get(command, serve_command)
    try:
        return run(arguments, os.environ)
    except InvalidOption as error:
        print(f"quire {command}: {error}", file=sys.stderr)
        return USAGE_ERROR
