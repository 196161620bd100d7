"""A small server with chat completions, of another make than Quire, that says what a test wants."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Answers:
    """`events` are the deltas of the next answer, or whole events where they have `choices`,
    `usage` or `error`; `refusal` is an answer without any. `asked` gathers the bodies, `keys` the
    keys of all requests."""

    events: Sequence[Mapping[str, object]] = ({"content": "Well met."},)
    has_end: bool = True
    refusal: tuple[int, str] | None = None
    models: Sequence[str] = ("stranger",)
    asked: list[dict[str, object]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def stream(self) -> str:
        events = [
            each if {"choices", "usage", "error"} & set(each) else {"choices": [{"delta": each}]}
            for each in self.events
        ]
        lines = [f"data: {json.dumps(each)}\n\n" for each in events]
        return "".join((*lines, *(["data: [DONE]\n\n"] if self.has_end else ())))


class _Server(ThreadingHTTPServer):
    def __init__(self, answers: Answers) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.answers.keys.append(self.headers["authorization"])
        models = [{"id": name} for name in self.server.answers.models]
        self._reply(200, json.dumps({"data": models}), "application/json")

    def do_POST(self) -> None:
        answers = self.server.answers
        answers.keys.append(self.headers["authorization"])
        answers.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if answers.refusal is not None:
            self._reply(*answers.refusal, "application/json")
        else:
            self._reply(200, answers.stream(), "text/event-stream")

    def _reply(self, status: int, body: str, kind: str) -> None:
        content = body.encode("utf-8", "surrogatepass")
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def answering_server(answers: Answers) -> Iterator[str]:
    """The URL where it answers."""
    with _Server(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)
