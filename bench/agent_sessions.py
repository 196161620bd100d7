"""Sessions of agents through the HTTP server, with their blocks kept and without.

    python -m bench.agent_sessions --model MODEL_DIR --data DATA --repeats 2

SESSIONS clients each take TURNS turns of a chat. All but the last turn must call a tool, by
`tool_choice`; the client comes back with its result after a gap drawn from the published
distribution (`quire.workbench.simulation.traces.shapes`). KV memory holds a third of all sessions.
Two servers of the same model, one with `--no-keep-sessions`, are measured in turn.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from bench.machine import read_machine
from bench.peers import QUIRE
from bench.servers import HOST, Launch, Server, running
from quire.workbench.bench.load import percentile
from quire.workbench.simulation.traces.shapes import gap_s

SESSIONS, TURNS, MAX_RUNNING = 16, 6, 16
SYSTEM_WORDS, TASK_WORDS, RESULT_WORDS = 300, (60, 150), (100, 250)
MAX_TOKENS = 48
BLOCK_SIZE, NUM_BLOCKS = 16, 900
"""A session ends with some 2,400 tokens, of which 500 are those of the system prompt: all have
33,000, and the blocks hold 14,400 with those of the running requests."""
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 300.0, 600.0
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "maxLength": 20}},
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }
]
VARIANTS = {"kept": ("--keep-sessions",), "not kept": ("--no-keep-sessions",)}


@dataclass(slots=True)
class SessionRun:
    """The figures of one run: seconds to the first byte of each turn's text, by whether it was the
    first of its session, tokens of prompts and those found, and the seconds of all."""

    label: str
    first_s: list[float] = field(default_factory=list)
    later_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_found: int = 0
    num_failed: int = 0
    seconds: float = 0.0

    @property
    def found_share(self) -> float:
        return self.num_found / max(self.num_prompt_tokens, 1)

    def line(self) -> str:
        """Return the figures in one line."""
        times = [*self.first_s, *self.later_s]
        p50, p95 = (percentile(times, percent) or 0.0 for percent in (50, 95))
        later = percentile(self.later_s, 50) or 0.0
        return (
            f"{self.label}: {self.found_share:.1%} of {self.num_prompt_tokens} tokens found; TTFT "
            f"p50 {1e3 * p50:.0f} ms, p95 {1e3 * p95:.0f} ms, of later turns p50 "
            f"{1e3 * later:.0f} ms; {self.seconds:.1f} s; {self.num_failed} failed"
        )


@dataclass(slots=True)
class AgentClient:
    """One session. `words` are those of all texts, of which it takes its own."""

    number: int
    words: Sequence[str]
    seed: int
    port: int
    found: SessionRun
    lock: threading.Lock

    def run(self) -> None:
        """Take all turns."""
        draw = random.Random(self.seed * 1000 + self.number)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._text(random.Random(self.seed), SYSTEM_WORDS)},
            {"role": "user", "content": self._text(draw, draw.randint(*TASK_WORDS))},
        ]
        time.sleep(self.number * 0.25)
        for turn in range(TURNS):
            answer = self._ask(messages, is_last=turn == TURNS - 1, is_first=turn == 0)
            if answer is None:
                return
            messages.append(answer)
            for call in answer.get("tool_calls") or ():
                text = self._text(draw, draw.randint(*RESULT_WORDS))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            time.sleep(gap_s(draw))

    def _text(self, draw: random.Random, num_words: int) -> str:
        first = draw.randrange(len(self.words) - num_words)
        return " ".join(self.words[first : first + num_words])

    def _ask(
        self, messages: list[dict[str, Any]], *, is_last: bool, is_first: bool
    ) -> dict[str, Any] | None:
        body = {
            "model": QUIRE.served_name,
            "messages": messages,
            "tools": TOOLS,
            "tool_choice": "none" if is_last else "required",
            "max_completion_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_TIMEOUT_S)
        sent_s = time.perf_counter()
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        if reply.status != http.client.OK:
            print(reply.read()[:300].decode(), file=sys.stderr)
            with self.lock:
                self.found.num_failed += 1
            return None
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        calls: dict[int, dict[str, Any]] = {}
        first_s, usage = None, None
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: ") :])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice["delta"]
                if first_s is None and (delta.get("content") or delta.get("tool_calls")):
                    first_s = time.perf_counter() - sent_s
                message["content"] += delta.get("content") or ""
                for part in delta.get("tool_calls") or ():
                    _add(calls.setdefault(part["index"], {}), part)
        if calls:
            message["tool_calls"] = list(calls.values())
        with self.lock:
            if first_s is not None:
                (self.found.first_s if is_first else self.found.later_s).append(first_s)
            if usage is not None:
                self.found.num_prompt_tokens += usage["prompt_tokens"]
                self.found.num_found += usage["prompt_tokens_details"]["cached_tokens"]
        return message


def _add(call: dict[str, Any], part: dict[str, Any]) -> None:
    """Add what a delta says of a call."""
    own = call.setdefault("function", {"name": "", "arguments": ""})
    call["type"] = "function"
    if part.get("id"):
        call["id"] = part["id"]
    for name, text in (part.get("function") or {}).items():
        own[name] += text or ""


def measure(server: Server, words: Sequence[str], seed: int, label: str) -> SessionRun:
    """Return the figures of one run."""
    found, lock = SessionRun(label), threading.Lock()
    clients = [
        AgentClient(number, words, seed, server.port, found, lock) for number in range(SESSIONS)
    ]
    threads = [threading.Thread(target=each.run) for each in clients]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.seconds = time.perf_counter() - began_s
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure both servers in turn, and print the medians of all rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.agent_sessions", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--data", type=Path, required=True, help="folder of tinyshakespeare.txt")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args(argv)
    words = (flags.data / "tinyshakespeare.txt").read_text(encoding="utf-8").split()
    options = (
        *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--block-size", str(BLOCK_SIZE)),
        *("--max-num-seqs", str(MAX_RUNNING)),
    )
    folder, runs = Path(mkdtemp(prefix="quire-agents-")), []
    with ExitStack() as stack:
        servers = {}
        for label, own in VARIANTS.items():
            launch = Launch(label, QUIRE, QUIRE.program, flags.model.absolute(), (*options, *own))
            log = folder / f"{label}.log"
            servers[label] = stack.enter_context(
                running(launch, log_path=log, start_timeout_s=START_TIMEOUT_S)
            )
        for index in range(flags.repeats):
            labels = list(VARIANTS) if index % 2 == 0 else list(VARIANTS)[::-1]
            for label in labels:
                with ExitStack() as paused:
                    for other, server in servers.items():
                        if other != label:
                            paused.enter_context(server.paused())
                    runs.append(measure(servers[label], words, flags.seed + index, label))
                print(f"round {index + 1}: {runs[-1].line()}", flush=True)
    print(read_machine())
    for label in VARIANTS:
        own_runs = [run for run in runs if run.label == label]
        share = median(run.found_share for run in own_runs)
        times = [percentile([*run.first_s, *run.later_s], 50) or 0.0 for run in own_runs]
        print(f"{label}: {share:.1%} found, TTFT p50 {1e3 * median(times):.0f} ms")


if __name__ == "__main__":
    main()
