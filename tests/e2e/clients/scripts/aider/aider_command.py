"""aider: its check of the model, a message about a file of a git repository, streamed and not."""

import os
import re
import subprocess
import sys
from pathlib import Path

MODEL = f"openai/{os.environ['OPENAI_MODEL']}"
aider = Path(sys.executable).with_name("aider")
folder = Path("repository")
folder.mkdir()
(folder / "hello.py").write_text('print("hello")\n')
(folder / ".aider.model.settings.yml").write_text(f"- name: {MODEL}\n  use_temperature: false\n")
who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
subprocess.run(["git", "add", "."], cwd=folder, check=True)
subprocess.run(["git", *who, "commit", "-qm", "Say hello"], cwd=folder, check=True)

options = ["--model", MODEL, "--openai-api-base", os.environ["OPENAI_BASE_URL"]]
quiet = ["--no-check-update", "--analytics-disable", "--no-show-release-notes"]
common = [str(aider), *options, *quiet, "--yes-always", "--no-pretty", "--no-show-model-warnings"]


def run(*words: str) -> str:
    done = subprocess.run(
        [*common, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


assert MODEL in run("--exit")
for stream in ("--stream", "--no-stream"):
    said = run("--message", "Say hello to the world.", "--map-tokens", "0", stream, "hello.py")
    assert re.search(r"Tokens: [0-9.k]+ sent, [0-9.k]+ received|Empty response", said), said
    assert "litellm." not in said, said
