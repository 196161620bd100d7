"""aider as an agent: an answer, an edit of a file, a turn with the history of both, a turn that is
cancelled."""

import os
import subprocess
import sys
from pathlib import Path

from turns import go_through

MODEL = f"openai/{os.environ['OPENAI_MODEL']}"
aider = str(Path(sys.executable).with_name("aider"))
folder = Path("work")
folder.mkdir()
(folder / ".aider.model.settings.yml").write_text(
    f"- name: {MODEL}\n  extra_params: {{max_tokens: {os.environ['MAX_TOKENS']}}}\n"
)
subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
quiet = ["--no-check-update", "--analytics-disable", "--no-show-release-notes", "--no-pretty"]
options = ["--yes-always", "--no-show-model-warnings", "--no-auto-commits", "--map-tokens", "0"]


def command(said: str, goes_on: bool) -> list[str]:
    history = ["--restore-chat-history"] if goes_on else []
    return [aider, "--model", MODEL, *quiet, *options, *history, "--message", said, "word.txt"]


go_through(command, "Let aider copy the file.", folder)
