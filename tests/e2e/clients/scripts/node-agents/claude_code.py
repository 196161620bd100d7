"""Claude Code, `claude -p` and `--continue`: an answer, a command and its output, a turn that goes
on, a turn that is cancelled."""

import os
from pathlib import Path

from turns import go_through

VARIABLES = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
folder = Path("work")
folder.mkdir()


def command(said: str, goes_on: bool) -> list[str]:
    return ["claude", "-p", said, "--allowedTools", "Bash", *(["--continue"] if goes_on else [])]


go_through(command, "Let Claude copy the file.", folder, {**os.environ, **VARIABLES})
