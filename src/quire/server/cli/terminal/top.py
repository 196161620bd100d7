"""The command `quire top`: its arguments, and whether there is a terminal to draw in."""

import sys
from collections.abc import Mapping

from quire.server.app.exit_codes import USAGE_ERROR
from quire.server.cli.arguments import text_of
from quire.workbench.bench.exchange import parse_address
from quire.workbench.terminal.requirements import CannotRun, check_libraries, check_terminal

INSTEAD = "without one read /metrics, or /v1/live as a stream of events"


def top_command(arguments: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Run the command. Return the exit code."""
    try:
        url = parse_address(str(arguments["url"])).url
        check_terminal({"standard input": sys.stdin, "standard output": sys.stdout}, INSTEAD)
        check_libraries()
    except (CannotRun, ValueError) as error:
        print(f"quire top: {error}", file=sys.stderr)
        return USAGE_ERROR
    from quire.workbench.terminal.top import TopOptions, run_top  # other commands need none of it

    model = text_of(arguments, "model")
    api_key = text_of(arguments, "api_key") or environ.get("QUIRE_API_KEY") or None
    return run_top(TopOptions(url, model, api_key))
