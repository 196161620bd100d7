"""LiteLLM's proxy, in a process of its own and asked by openai: chat, a stream, a tool, a schema,
embeddings, responses."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from openai import OpenAI
from pydantic import BaseModel

NAME = os.environ["OPENAI_MODEL"]
MODEL = f"openai/{NAME}"
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class City(BaseModel):
    name: str
    population: int


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(240):
        assert process.poll() is None, "the proxy has ended"
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError("the proxy is not ready")


def ask(client: OpenAI) -> None:
    assert MODEL in [each.id for each in client.models.list()]
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=40)
    assert answer.usage.completion_tokens > 0
    *_, last = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert last.usage.completion_tokens > 0
    called = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[WEATHER], tool_choice="required"
    )
    call = called.choices[0].message.tool_calls[0]
    assert "city" in json.loads(call.function.arguments)
    typed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
    assert isinstance(typed.choices[0].message.parsed, City)
    assert len(client.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2
    response = client.responses.create(model=MODEL, input="A story.", max_output_tokens=40)
    assert response.status in ("completed", "incomplete")


port = free_port()
litellm = Path(sys.executable).with_name("litellm")
command = [litellm, "--model", MODEL, "--host", "127.0.0.1", "--port", str(port)]
key = f"sk-{secrets.token_hex(16)}"
process = subprocess.Popen(command, env={**os.environ, "LITELLM_MASTER_KEY": key})
try:
    url = f"http://127.0.0.1:{port}"
    wait_for(f"{url}/health/liveliness", process)
    with OpenAI(base_url=url, api_key=key) as client:
        ask(client)
finally:
    process.terminate()
    process.wait(30)
