"""The command line of `quire`: its parsers, and the message for a flag that none of them knows."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from quire.server.cli.default_model import TITLE
from quire.server.cli.settings import add_engine_options, add_options, add_planned_options
from quire.server.config import BUNDLED
from quire.server.suggestion import closest
from quire.version import __version__
from quire.workbench.bench.options import EPILOG, add_bench_options
from quire.workbench.planning.options import add_plan_options
from quire.workbench.simulation.options import EPILOG as SIM_EPILOG
from quire.workbench.simulation.options import add_sim_options
from quire.workbench.terminal.options import CHAT_EPILOG, add_chat_options, add_top_options


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--no-self-test", action="store_true", help="skip the self-test of ten seconds"
    )


def add_planning(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `quire plan`: its own, and those of `quire serve` that it takes."""
    add_plan_options(parser)
    add_planned_options(parser)


FLAGS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = MappingProxyType(
    {
        "serve": add_options,
        "chat": add_chat_options,
        "top": add_top_options,
        "doctor": _add_doctor,
        "run-batch": add_engine_options,
        "bench": add_bench_options,
        "sim": add_sim_options,
        "plan": add_planning,
    }
)
DOCTOR_EPILOG = "Exit code 1: a finding is `fail`. The variables of `quire serve` set the options."
VARIABLES = "Each flag can be given as a variable: --max-num-seqs as QUIRE_MAX_NUM_SEQS."
FLAG = re.compile(r"--?[a-zA-Z_][^\s=]*")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quire", description="Serves language models over HTTP.")
    parser.add_argument("--version", action="version", version=f"quire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serving = commands.add_parser(
        "serve",
        help="serve a model",
        epilog=VARIABLES,
        allow_abbrev=False,
    )
    _add_model(serving, f"{TITLE}, fetched once")
    add_options(serving)
    _add_for_people(commands)
    batch = commands.add_parser(
        "run-batch",
        help="answer the lines of a batch file",
        epilog=f"{VARIABLES} After a kill, the same command continues.",
        allow_abbrev=False,
    )
    batch.add_argument("IN", help="file of requests, in OpenAI's batch format")
    batch.add_argument("OUT", help="file for the answers, one line per request, appended")
    _add_model(batch, "the bundled model")
    add_engine_options(batch)
    add_bench_options(
        commands.add_parser(
            "bench", help="measure a server, or compare two", epilog=EPILOG, allow_abbrev=False
        )
    )
    _add_without_weights(commands)
    commands.add_parser("config-table")  # for docs/configuration.md; not in the help
    return parser


def _add_for_people(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands for a person at a terminal."""
    add_chat_options(
        commands.add_parser(
            "chat", help="chat with a model in a terminal", epilog=CHAT_EPILOG, allow_abbrev=False
        )
    )
    add_top_options(
        commands.add_parser(
            "top", help="watch a server's blocks and requests in a terminal", allow_abbrev=False
        )
    )
    doctor = commands.add_parser(
        "doctor",
        help="examine this machine, and whether it can serve a model",
        epilog=DOCTOR_EPILOG,
        allow_abbrev=False,
    )
    doctor.add_argument(
        "positional_model",
        nargs="?",
        metavar="MODEL",
        help="Hugging Face id or local folder to examine, without its weights [none]",
    )
    _add_doctor(doctor)


def _add_without_weights(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands that run the scheduler without a model, and plans of one."""
    planning = commands.add_parser(
        "plan",
        help="plan the memory and speed of a model, without its weights",
        epilog=f"{VARIABLES} Exit code 1: the model would not start.",
        allow_abbrev=False,
    )
    _add_model(planning, "the bundled model")
    add_planning(planning)
    replay = commands.add_parser(
        "replay",
        help="replay a flight record",
        epilog="Exit code 1: the replay made another decision than the record.",
        allow_abbrev=False,
    )
    _add_replay(replay)
    sim = commands.add_parser(
        "sim",
        help="simulate the scheduler on a trace",
        epilog=SIM_EPILOG,
        allow_abbrev=False,
    )
    add_sim_options(sim)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("FILE", help="flight record of a server")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_model(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "positional_model",
        nargs="?",
        metavar="MODEL",
        help=f"Hugging Face id, local folder, GGUF file, or {BUNDLED} [{default}]",
    )


def unknown_flag(argv: Sequence[str]) -> str | None:
    """Return a sentence on the first flag that its command does not know, with the one perhaps
    meant.

    It is looked for before the arguments are parsed: the parser would complain of the word after
    it.
    """
    command, words = "".join(argv[:1]), argv[1:]
    if command not in FLAGS:
        return None
    known = _known_flags(FLAGS[command])
    for word in words:
        if word == "--":
            return None
        found = FLAG.match(word)
        if found is not None and " " not in word and found[0] not in known:
            meant = closest(found[0].lower().replace("_", "-"), known)
            hint = f"did you mean {meant}?" if meant else f"`quire {command} --help` lists them all"
            return f"quire {command}: unknown flag {found[0]}; {hint}"
    return None


def _known_flags(add: Callable[[argparse.ArgumentParser], None]) -> list[str]:
    parser = argparse.ArgumentParser()
    add(parser)
    return [flag for action in parser._actions for flag in action.option_strings]


def text_of(arguments: Mapping[str, object], name: str) -> str | None:
    """Return an argument that is text, None where it was not given."""
    given = arguments[name]
    return given if isinstance(given, str) else None
