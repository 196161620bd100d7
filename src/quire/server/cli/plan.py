"""The command `quire plan`: what serving a model would take, told without its weights."""

import argparse
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from quire.models.config import CheckpointError, UnsupportedModel
from quire.server.app.exit_codes import FAILED_START, USAGE_ERROR
from quire.server.cli.options import OPTIONS
from quire.server.cli.output import print_line
from quire.server.cli.settings import add_planned_options, read_config
from quire.server.config import InvalidOption
from quire.workbench.planning.plan import PlanRequest, RequestLengths, ServingPlan, build_plan
from quire.workbench.planning.report import diff_lines, lines_of
from quire.workbench.simulation.cost.cost_file import save_cost
from quire.workbench.simulation.cost.devices import DeviceError

OWN = ("planned_device", "input_tokens", "output_tokens", "diff", "cost", "json")


def run_plan(arguments: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Print a plan, or two. Return the exit code: 0 where the model would start. Raises
    InvalidOption."""
    logging.basicConfig(level=logging.ERROR)
    asked = [arguments]
    if arguments["diff"] is not None:
        if arguments["cost"] is not None:
            raise InvalidOption("--cost writes the cost of one plan: leave --diff out")
        asked.append({**arguments, **_changes(str(arguments["diff"]))})
    try:
        plans = [_plan(each, environ) for each in asked]
        _write_cost(plans[0], arguments["cost"])
    except (CheckpointError, DeviceError, UnsupportedModel, ValueError, OSError) as error:
        print(f"quire plan: {error}", file=sys.stderr)
        return USAGE_ERROR
    if arguments["json"]:
        print_line(msgspec.json.encode(plans[0] if len(plans) == 1 else plans).decode())
    else:
        print_line("\n".join(lines_of(plans[0]) if len(plans) == 1 else diff_lines(*plans)))
    return 0 if all(each.facts is not None for each in plans) else FAILED_START


def _plan(arguments: Mapping[str, object], environ: Mapping[str, str]) -> ServingPlan:
    """Return the plan that arguments ask for. Raises InvalidOption, and what `build_plan` does."""
    flags = {name: value for name, value in arguments.items() if name not in OWN}
    config = read_config(flags, environ)
    if len(config.models) > 1:
        raise InvalidOption("--model names several models, but a plan is of one")
    model = flags.get("positional_model") or _only(flags.get("model"))
    request = PlanRequest(
        model=None if model is None else str(model),
        device=str(arguments["planned_device"]),
        options=tuple(_words(flags)),
        lengths=msgspec.convert(
            {
                "num_input_tokens": arguments["input_tokens"],
                "num_output_tokens": arguments["output_tokens"],
            },
            RequestLengths,
        ),
    )
    return build_plan(request, config.model.engine)


def _write_cost(plan: ServingPlan, path: object) -> None:
    """Write the cost of a plan's steps where it is wanted; there is none of what would not start.
    Raises OSError."""
    if isinstance(path, Path) and plan.cost is not None:
        save_cost(plan.cost, path)


def _changes(options: str) -> dict[str, object]:
    """Return the arguments that `--diff` gives. Raises InvalidOption."""
    parser = argparse.ArgumentParser(prog="--diff", exit_on_error=False, add_help=False)
    parser.add_argument("--device", dest="planned_device", default=argparse.SUPPRESS)
    add_planned_options(parser)
    try:
        found, unknown = parser.parse_known_args(shlex.split(options))
    except (argparse.ArgumentError, ValueError) as error:
        raise InvalidOption(f"--diff {options!r}: {error}") from None
    if unknown or not vars(found):
        raise InvalidOption(
            f"--diff is {options!r}, must be options of a plan: --device, or those of "
            f"`quire plan --help` that `quire serve` has too; not {' '.join(unknown) or 'nothing'}"
        )
    return vars(found)


def _words(flags: Mapping[str, object]) -> Iterator[str]:
    """Yield the options that were given as flags, as words of a command."""
    for option in OPTIONS:
        value = flags.get(option.key)
        if option.key == "model" or value is None:
            continue
        if isinstance(value, bool):
            yield f"--{option.flag}" if value else f"--no-{option.flag}"
            continue
        for each in value if isinstance(value, list) else [value]:
            yield f"--{option.flag}"
            yield str(each)


def _only(values: object) -> object:
    return values[0] if isinstance(values, list) and values else None
