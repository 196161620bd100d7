"""llm, the command, with extra-openai-models.yaml: a prompt streamed and whole, a conversation that
goes on, a schema, a tool."""

import json
import os
import subprocess
import sys
from pathlib import Path

MODEL = os.environ["OPENAI_MODEL"]
folder = Path("llm").resolve()
folder.mkdir()
(folder / "extra-openai-models.yaml").write_text(
    f"""- model_id: local
  model_name: {MODEL}
  api_base: {os.environ["OPENAI_BASE_URL"]}
  api_key_name: openai
  supports_schema: true
  supports_tools: true
"""
)


def llm(*words: str) -> str:
    command = [str(Path(sys.executable).with_name("llm")), *words]
    done = subprocess.run(
        command,
        env={**os.environ, "LLM_USER_PATH": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


assert "local" in llm("models")
llm("-m", "local", "Once upon a time", "-s", "Be brief.", "-o", "max_tokens", "40")
llm("-m", "local", "--no-stream", "Tell more.", "-c", "-o", "max_tokens", "40")
first, second = json.loads(llm("logs", "--json", "-n", "0"))
assert first["conversation_id"] == second["conversation_id"]
city = json.loads(llm("-m", "local", "--schema", "name, population int", "Invent a city."))
assert isinstance(city["population"], int)
llm("-m", "local", "--tool", "llm_version", "Which version?", "-o", "max_tokens", "40")
