"""A small server in OpenAI's style whose behaviour a test chooses."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class ServerBehaviour:
    """`asked` gathers the bodies of all requests for text."""

    is_chat: bool = False
    takes_ignore_eos: bool = True
    tells_usage: bool = True
    max_output_tokens: int = 1000
    num_good: int = 1000
    page: str | None = None
    asked: list[dict[str, object]] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    def __init__(self, behaviour: ServerBehaviour) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour = behaviour


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        models = json.dumps({"object": "list", "data": [{"id": "m"}]})
        page = self.server.behaviour.page
        is_known = self.path == "/v1/models" or page is not None
        self._reply(200 if is_known else 404, page or models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        behaviour = self.server.behaviour
        path = "/v1/chat/completions" if behaviour.is_chat else "/v1/completions"
        if self.path != path:
            self._reply(404, json.dumps({"detail": "Not Found"}))
            return
        behaviour.asked.append(body)
        if body["model"] != "m":
            self._refuse(404, f"no model {body['model']}")
        elif "ignore_eos" in body and not behaviour.takes_ignore_eos:
            self._refuse(400, "ignore_eos is not known")
        elif len(behaviour.asked) > behaviour.num_good:
            self._refuse(503, "full")
        else:
            self._reply(200, "".join(f"data: {event}\n\n" for event in self._events(body)))

    def _events(self, body: dict[str, object]) -> Iterator[str]:
        behaviour, wanted = self.server.behaviour, body["max_tokens"]
        assert isinstance(wanted, int)
        num_tokens = min(wanted, behaviour.max_output_tokens)
        text: dict[str, object] = {"text": " x"}
        if behaviour.is_chat:
            text = {"delta": {"content": " x"}}
        for _ in range(num_tokens):
            yield json.dumps({"choices": [text]})
        if behaviour.tells_usage:
            # Two tokens a word, and five of a template.
            num_prompt = 2 * len(self._prompt(body).split()) + 5
            usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens}
            yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"

    def _prompt(self, body: dict[str, object]) -> str:
        if not self.server.behaviour.is_chat:
            return str(body["prompt"])
        messages = body["messages"]
        assert isinstance(messages, list)
        return str(messages[0]["content"])

    def _refuse(self, status: int, message: str) -> None:
        self._reply(status, json.dumps({"error": {"message": message}}))

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def scripted_server(behaviour: ServerBehaviour) -> Iterator[str]:
    """The URL where it answers."""
    with _Server(behaviour) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)
