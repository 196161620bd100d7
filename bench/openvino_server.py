"""Serves OpenVINO GenAI's continuous batching over HTTP, for `bench.compare`.

    PYTHON openvino_server.py MODEL.gguf --port 8000

PYTHON has `openvino-genai` and `openvino-tokenizers`; nothing of this project is imported. It takes
what `bench.load` sends: `POST /v1/completions`, streamed and greedy. One thread runs the pipeline's
steps, one thread a connection waits for its tokens. Each token is decoded by itself, which may
spoil characters that several tokens share and changes no count.
"""

import argparse
import itertools
import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import openvino_genai as genai

if TYPE_CHECKING:
    from openvino_genai.py_openvino_genai import GenerationHandle


@dataclass(slots=True)
class Job:
    """One request: `made` has its tokens, and None after the last."""

    prompt: str
    num_left: int
    made: queue.Queue[int | None] = field(default_factory=queue.Queue)


class Engine:
    """Continuous batching in a thread; each request has a queue of the tokens that it makes."""

    def __init__(self, model: str, max_num_seqs: int, cache_gib: int) -> None:
        config = genai.SchedulerConfig()
        config.max_num_seqs, config.cache_size = max_num_seqs, cache_gib
        config.enable_prefix_caching = True
        self._pipeline = genai.ContinuousBatchingPipeline(model, config, "CPU")
        self.tokenizer = self._pipeline.get_tokenizer()
        self._ids = itertools.count()
        self._arrivals: queue.Queue[Job] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def generate(self, prompt: str, num_tokens: int) -> Iterator[int]:
        """Yield the tokens of a greedy answer of exactly that length."""
        job = Job(prompt, num_tokens)
        self._arrivals.put(job)
        while (token := job.made.get()) is not None:
            yield token

    def _run(self) -> None:
        running: list[tuple[GenerationHandle, Job]] = []
        while True:
            while not running or not self._arrivals.empty():
                running.append(self._submit(self._arrivals.get()))
            self._pipeline.step()
            running = [(handle, job) for handle, job in running if self._deliver(handle, job)]

    def _submit(self, job: Job) -> tuple["GenerationHandle", Job]:
        config = genai.GenerationConfig()
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        config.max_new_tokens = job.num_left
        return self._pipeline.add_request(next(self._ids), job.prompt, config), job

    def _deliver(self, handle: "GenerationHandle", job: Job) -> bool:
        """Hand over the new tokens of a request; return whether there are more to come."""
        while handle.can_read():
            for output in handle.read().values():
                for token in output.generated_ids:
                    job.made.put(token)
                    job.num_left -= 1
        if job.num_left > 0:
            return True
        job.made.put(None)
        return False


def handler_of(engine: Engine) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests from `engine`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            num_prompt = engine.tokenizer.encode(body["prompt"]).input_ids.shape[1]
            num_output = 0
            for token in engine.generate(body["prompt"], body["max_tokens"]):
                num_output += 1
                text = engine.tokenizer.decode([token]) or " "
                self._event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
            usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output}
            self._event({"choices": [], "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _event(self, event: object) -> None:
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing of single requests."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description="OpenVINO GenAI behind /v1/completions")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--cache-gib", type=int, default=2)
    args = parser.parse_args()
    engine = Engine(args.model, args.max_num_seqs, args.cache_gib)
    ThreadingHTTPServer(("127.0.0.1", args.port), handler_of(engine)).serve_forever()


if __name__ == "__main__":
    main()
