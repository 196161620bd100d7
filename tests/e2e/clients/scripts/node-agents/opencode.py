"""OpenCode, `opencode run` and `--continue`: an answer, a command and its output, a turn that goes
on, a turn that is cancelled."""

import json
import os
from pathlib import Path

from turns import go_through

MODEL = os.environ["OPENAI_MODEL"]
LIMITS = {"context": int(os.environ["CONTEXT"]), "output": int(os.environ["MAX_TOKENS"])}
CONFIG = {
    "model": f"quire/{MODEL}",
    "small_model": f"quire/{MODEL}",
    "enabled_providers": ["quire"],
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "quire": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Quire",
            "options": {
                "baseURL": os.environ["OPENAI_BASE_URL"],
                "apiKey": "{env:OPENAI_API_KEY}",
            },
            "models": {MODEL: {"limit": LIMITS}},
        }
    },
}
VARIABLES = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}
folder = Path("work")
folder.mkdir()
(folder / "opencode.json").write_text(json.dumps(CONFIG))


def command(said: str, goes_on: bool) -> list[str]:
    return ["opencode", "run", *(["--continue"] if goes_on else []), said]


go_through(command, "Let OpenCode copy the file.", folder, {**os.environ, **VARIABLES})
