"""Codex, `codex exec` and `exec resume`: an answer, a command and its output, a turn that goes on,
a turn that is cancelled."""

import os
from pathlib import Path

from turns import go_through

CONFIG = f"""
model = "{os.environ["OPENAI_MODEL"]}"
model_provider = "quire"
model_context_window = {os.environ["CONTEXT"]}
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.quire]
name = "Quire"
base_url = "{os.environ["OPENAI_BASE_URL"]}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[analytics]
enabled = false

[feedback]
enabled = false
"""
home, folder = Path.home() / ".codex", Path("work")
home.mkdir()
folder.mkdir()
(home / "config.toml").write_text(CONFIG)


def command(said: str, goes_on: bool) -> list[str]:
    asks = ["resume", "--last", said] if goes_on else [said]
    return ["codex", "exec", "--skip-git-repo-check", *asks]


go_through(command, "Let Codex copy the file.", folder)
