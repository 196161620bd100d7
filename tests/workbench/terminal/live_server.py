"""A server that has a live view alone: it sends the events that a test puts in, and ends streams
when it is told to."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

END = object()


class LiveServer(ThreadingHTTPServer):
    """`url` is where it answers; `asked` are the paths and keys of its requests."""

    daemon_threads = True

    def __init__(self, refusal: tuple[int, str] | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusal = refusal
        self.events: Queue[object] = Queue()
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def tell(self, event: Mapping[str, object]) -> None:
        self.events.put(event)

    def end_stream(self) -> None:
        self.events.put(END)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["authorization"]))
        if self.server.refusal is not None:
            status, body = self.server.refusal
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        with suppress(OSError):  # the client has left
            while (event := self.server.events.get()) is not END:
                self.wfile.write(f": keep-alive\n\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def live_server(refusal: tuple[int, str] | None = None) -> Iterator[LiveServer]:
    with LiveServer(refusal) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.end_stream()
            server.shutdown()
            thread.join(10)
