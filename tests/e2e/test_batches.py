"""The `openai` client's files and batches against the real server, through a restart."""

import io
import json
import time
from pathlib import Path
from typing import Any

import openai

from tests.e2e.server_process import MODEL, ServerProcess, eventually, server_process
from tests.server.apis.batches.batch_files import encode, line

NUM_LINES = 48
NUM_TOKENS = 40


def lines() -> list[dict[str, object]]:
    return [
        line(
            f"line-{number}",
            model=MODEL,
            prompt=f"{number} lords,",
            max_tokens=NUM_TOKENS,
            temperature=0,
            ignore_eos=True,
        )
        for number in range(NUM_LINES)
    ]


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def begun(client: openai.OpenAI) -> tuple[str, str]:
    """The ids of a file and of a batch that has answered some of its lines."""
    upload = ("in.jsonl", io.BytesIO(encode(lines())))
    file = client.files.create(file=upload, purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    assert eventually(lambda: num_done(client, batch.id) >= 8, 60)
    return file.id, batch.id


def num_done(client: openai.OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    return 0 if counts is None else counts.completed


def test_a_batch_goes_on_after_a_restart_and_is_what_requests_alone_get(tmp_path: Path) -> None:
    flags = ("--dtype", "float32", "--batch-dir", str(tmp_path), "--max-num-seqs", "4")
    with server_process(*flags) as server, client_of(server) as client:
        file_id, batch_id = begun(client)
        began_s = time.monotonic()
        client.completions.create(model=MODEL, prompt="O,", max_tokens=1)
        assert time.monotonic() - began_s < 5  # a live request does not wait for the batch
        assert num_done(client, batch_id) < NUM_LINES
        server.process.kill()
        server.process.wait()
    with server_process(*flags) as server, client_of(server) as client:
        assert eventually(lambda: client.batches.retrieve(batch_id).status == "completed", 90)
        (done,) = client.batches.list().data
        assert (done.id, done.error_file_id) == (batch_id, None)
        answers = client.files.content(done.output_file_id or "").text.splitlines()
        check_answers([json.loads(each) for each in answers], client)
        client.files.delete(file_id)
        assert [each.id for each in client.files.list().data] == [done.output_file_id]


def check_answers(answers: list[dict[str, Any]], client: openai.OpenAI) -> None:
    """Check that each line is answered once, and one of them as a live request is."""
    ids = sorted(each["custom_id"] for each in answers)
    assert ids == sorted(str(each["custom_id"]) for each in lines())
    (told,) = [each for each in answers if each["custom_id"] == "line-3"]
    alone = client.completions.create(
        model=MODEL,
        prompt="3 lords,",
        max_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert told["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
