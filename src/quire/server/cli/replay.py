"""The command `quire replay`: what a flight recorder has written is replayed and told."""

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from quire.engine.recording.flight_file import FlightFileError, load_file
from quire.progress import Progress
from quire.server.app.exit_codes import DIFFERS, USAGE_ERROR
from quire.server.cli.output import print_line
from quire.workbench.simulation.replay import replay
from quire.workbench.simulation.report import lines_of, report_of


def replay_command(arguments: Mapping[str, object]) -> int:
    """Replay a file. Return the exit code: 0 where all was decided the same."""
    path = Path(str(arguments["FILE"]))
    try:
        file = load_file(path)
        progress = Progress(sys.stderr, lambda part: print(part, file=sys.stderr), unit="segment")
        with closing(progress):
            replayed = replay(
                file.segments,
                lambda number, num_all, _: progress.show("replaying", number, num_all),
            )
    except (FlightFileError, OSError) as error:
        print(f"quire replay: {path}: {error}", file=sys.stderr)
        return USAGE_ERROR
    if not replayed.starts:
        print(f"quire replay: {path}: nothing in it is whole", file=sys.stderr)
        return USAGE_ERROR
    report = report_of(file.head, replayed)
    if arguments["json"]:
        print_line(msgspec.json.encode(report).decode())
    else:
        print_line("\n".join(lines_of(report)))
    return 0 if report.is_same else DIFFERS
