"""`/v1/files` and `/v1/batches`: whose they are, how much may be kept, and how a batch ends."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import httpx
import pytest

from quire.server.apis.batches.queue import BURST, TICK_S
from quire.server.config import ApiKey
from tests.server.apis.batches.batch_files import COMPLETIONS, EMBEDDINGS, RESPONSES, encode, line
from tests.server.scripted_engine import repeat_prompt
from tests.server.served import MODEL, Served, eventually, plain_config, serving

ONE, TWO = "key-one", "key-two"
QUOTA, UPLOAD = 4000, 2000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def running(store: Path) -> Iterator[Served]:
    config = replace(
        plain_config(),
        api_keys=(ApiKey(ONE, "one"), ApiKey(TWO, "two")),
        batch_dir=str(store),
        batch_quota=QUOTA,
        max_upload_bytes=UPLOAD,
    )
    with serving(config) as served:
        yield served


class Client:
    """Files and batches of one key."""

    def __init__(self, served: Served, key: str) -> None:
        self._client = served.client
        self._headers = {"authorization": f"Bearer {key}"}

    def ask(self, method: str, path: str, **rest: object) -> httpx.Response:
        return self._client.request(method, f"/v1/{path}", headers=self._headers, **rest)  # type: ignore[arg-type]

    def upload(self, content: bytes, **fields: str) -> httpx.Response:
        data = {"purpose": "batch"} | fields
        return self.ask("POST", "files", data=data, files={"file": ("in.jsonl", content)})

    def begin(self, content: bytes, endpoint: str = COMPLETIONS) -> str:
        file_id = self.upload(content).json()["id"]
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        return str(self.ask("POST", "batches", json=body).json()["id"])

    def ended(self, batch_id: str) -> dict[str, object]:
        found: dict[str, object] = {}

        def is_ended() -> bool:
            found.update(self.ask("GET", f"batches/{batch_id}").json())
            return found["status"] in ("completed", "failed", "cancelled", "expired")

        assert eventually(is_ended, 20), found
        return found

    def clean(self) -> None:
        for file in self.ask("GET", "files").json()["data"]:
            self.ask("DELETE", f"files/{file['id']}")


@pytest.fixture
def one(running: Served) -> Iterator[Client]:
    running.engine.script = repeat_prompt
    running.engine.may_step.set()
    client = Client(running, ONE)
    yield client
    client.clean()


def requests_of(*prompts: str, max_tokens: int = 2) -> bytes:
    return encode(
        line(f"id-{each}", model=MODEL, prompt=each, max_tokens=max_tokens, temperature=0)
        for each in prompts
    )


def answers_in(client: Client, file_id: object) -> dict[str, int]:
    content = client.ask("GET", f"files/{file_id}/content").content
    answers = [json.loads(each) for each in content.splitlines()]
    return {each["custom_id"]: each["response"]["status_code"] for each in answers}


def test_a_batch_is_answered_and_its_errors_are_apart(one: Client) -> None:
    wrong = encode([line("wrong", model="nobody", prompt="a")])
    streamed = encode([line("streamed", model=MODEL, prompt="a", stream=True)])
    batch = one.ended(one.begin(requests_of("My lord", "My lady") + wrong + streamed))
    assert batch["status"] == "completed" and batch["errors"] is None
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert answers_in(one, batch["output_file_id"]) == {"id-My lord": 200, "id-My lady": 200}
    assert answers_in(one, batch["error_file_id"]) == {"wrong": 404, "streamed": 400}
    assert one.ask("GET", f"files/{batch['output_file_id']}").json()["purpose"] == "batch_output"


def test_lines_may_be_responses_which_are_stored_where_they_say_so(one: Client) -> None:
    asked: dict[str, object] = {"model": MODEL, "input": "My lord", "max_output_tokens": 2}
    content = encode(
        [
            line("plain", RESPONSES, **asked),
            line("stored", RESPONSES, **asked, store=True),
            line("background", RESPONSES, **asked, background=True),
        ]
    )
    batch = one.ended(one.begin(content, RESPONSES))
    assert answers_in(one, batch["error_file_id"]) == {"background": 400}
    output = one.ask("GET", f"files/{batch['output_file_id']}/content").content
    for each in map(json.loads, output.splitlines()):
        body = each["response"]["body"]
        assert body["store"] is (each["custom_id"] == "stored")
        status = one.ask("GET", f"responses/{body['id']}").status_code
        assert status == (200 if body["store"] else 404)


def test_lines_may_ask_for_embeddings(one: Client) -> None:
    lines = [
        line(f"line-{n}", EMBEDDINGS, model=MODEL, input=["the king", "my lord"][: n + 1])
        for n in (0, 1)
    ]
    batch = one.ended(one.begin(encode(lines), EMBEDDINGS))
    output = one.ask("GET", f"files/{batch['output_file_id']}/content").content
    answers = sorted(map(json.loads, output.splitlines()), key=lambda each: each["custom_id"])
    assert [len(each["response"]["body"]["data"]) for each in answers] == [1, 2]


def test_a_file_that_is_no_batch_fails_by_its_lines(one: Client) -> None:
    chat = encode([line("a", "/v1/chat/completions", messages=[])])
    batch = one.ended(one.begin(requests_of("a") + chat))
    assert batch["status"] == "failed"
    errors = batch["errors"]
    assert isinstance(errors, dict)
    (fault,) = errors["data"]
    assert (fault["line"], fault["param"], fault["code"]) == (2, "url", "invalid_value")


def test_what_is_anothers_is_not_there(running: Served, one: Client) -> None:
    two = Client(running, TWO)
    batch_id = one.begin(requests_of("a"))
    file_id = one.ended(batch_id)["input_file_id"]
    for method, path in (
        ("GET", f"files/{file_id}"),
        ("GET", f"files/{file_id}/content"),
        ("DELETE", f"files/{file_id}"),
        ("GET", f"batches/{batch_id}"),
        ("POST", f"batches/{batch_id}/cancel"),
    ):
        reply = two.ask(method, path)
        assert (reply.status_code, reply.json()["error"]["code"][-9:]) == (404, "not_found")
    body = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    assert two.ask("POST", "batches", json=body).status_code == 404
    assert two.ask("GET", "files").json()["data"] == []
    assert two.ask("GET", "batches").json()["data"] == []


def test_uploads_and_what_is_kept_are_limited(one: Client) -> None:
    reply = one.upload(b"x" * (UPLOAD + 1))
    assert (reply.status_code, reply.json()["error"]["param"]) == (413, "file")
    for _ in range(2):
        assert one.upload(b"x" * UPLOAD).status_code == 200
    reply = one.upload(b"x")
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "storage_quota_exceeded")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[seconds]": "5000"}, "expires_after[anchor]"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"},
            "expires_after[seconds]",
        ),
    ],
)
def test_a_wrong_field_of_an_upload_is_named(
    one: Client, fields: dict[str, str], param: str
) -> None:
    reply = one.upload(b"a", **fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert one.ask("GET", "files").json()["data"] == []


def test_what_is_no_upload_is_refused(one: Client) -> None:
    for reply in (
        one.ask("POST", "files", json={}),
        one.ask("POST", "files", data={"purpose": "batch"}, files={"other": b"a"}),
        one.ask("POST", "files", content=b"--x\r\n"),
    ):
        assert reply.status_code == 400


def test_lists_come_in_pages(one: Client) -> None:
    ids = [one.upload(b"a").json()["id"] for _ in range(3)]
    first = one.ask("GET", "files", params={"limit": "2"}).json()
    rest = one.ask("GET", "files", params={"after": first["last_id"]}).json()
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert sorted(each["id"] for each in first["data"] + rest["data"]) == sorted(ids)
    for params in ({"limit": "0"}, {"after": "x"}, {"order": "up"}, {"colour": "red"}):
        reply = one.ask("GET", "files", params=params)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(params)))


def test_a_batch_that_is_cancelled_keeps_what_is_answered(running: Served, one: Client) -> None:
    def script(request: object) -> Iterator[int]:
        yield 100
        running.engine.may_step.clear()
        yield from repeat(100)

    running.engine.script = script
    batch_id = one.begin(requests_of("a", "b", max_tokens=50))
    assert eventually(
        lambda: one.ask("GET", f"batches/{batch_id}").json()["status"] == "in_progress"
    )
    assert eventually(lambda: not running.engine.may_step.is_set())
    assert one.ask("POST", f"batches/{batch_id}/cancel").json()["status"] == "cancelling"
    batch = one.ended(batch_id)
    assert (batch["status"], batch["output_file_id"]) == ("cancelled", None)
    running.engine.may_step.set()
    done = one.ended(one.begin(requests_of("c")))
    reply = one.ask("POST", f"batches/{done['id']}/cancel")
    assert reply.json()["error"]["code"] == "batch_not_cancellable"


def test_a_full_disk_keeps_no_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line that begins as another's answer cannot be written is cancelled before it has run."""
    written = os.fsync

    def full(descriptor: int) -> None:
        is_output = "-output" in os.readlink(f"/proc/self/fd/{descriptor}")
        if is_output and os.fstat(descriptor).st_size:
            raise OSError(28, "No space left on device")
        written(descriptor)

    keys = (ApiKey(ONE, "one"),)
    with serving(replace(plain_config(), api_keys=keys, batch_dir=str(tmp_path))) as served:
        monkeypatch.setattr("os.fsync", full)
        Client(served, ONE).begin(requests_of(*map(str, range(2 * BURST))))
        assert eventually(lambda: "it is tried again" in caplog.text)
        time.sleep(3 * TICK_S)  # slots are counted once in a tick
        assert served.metric("quire:batch_lines_running") == 0


def test_batches_are_counted(running: Served, one: Client) -> None:
    before = running.metric('quire:batch_lines_total{end="completed"')
    one.ended(one.begin(requests_of("a", "b")))
    assert running.metric('quire:batch_lines_total{end="completed"') == before + 2


def test_a_server_without_a_directory_says_so(served: Served) -> None:
    reply = served.client.get("/v1/batches")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "batches_off")
