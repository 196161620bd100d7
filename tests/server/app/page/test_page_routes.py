"""The files of the page over plain HTTP: their heads and policy, and nothing else beside them."""

import gzip
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.app.page.files import ICON, INDEX, PAGE_FOLDER, read_page_files
from quire.server.config import ApiKey
from tests.server.served import Served, plain_config, serving

FILES = read_page_files()
PATHS = {f"{PAGE_FOLDER}/{name}": name for name in FILES if name != INDEX}
PATHS |= {"/": INDEX, "/favicon.ico": ICON}
AS_BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """A server that wants a key of everyone who asks for more than the page."""
    with serving(replace(plain_config(), api_keys=(ApiKey("key-of-ann"),))) as running:
        yield running


@pytest.fixture
def client(guarded: Served) -> Iterator[httpx.Client]:
    """A client that accepts anything, uncompressed; 304 is a status of HTTP, not of the API."""
    with httpx.Client(base_url=guarded.url, headers={"accept-encoding": "identity"}) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_a_file_is_served_without_a_key_under_the_policy(client: httpx.Client, path: str) -> None:
    reply = client.get(path, headers=AS_BROWSER)
    name = PATHS[path]
    assert (reply.status_code, reply.content) == (200, FILES[name].plain)
    assert reply.headers["content-type"] == MEDIA_TYPES[name.rpartition(".")[2]]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert policy_of(reply) == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def policy_of(reply: httpx.Response) -> dict[str, str]:
    directives = reply.headers["content-security-policy"].split("; ")
    return {name: sources for name, _, sources in (each.partition(" ") for each in directives)}


@pytest.mark.parametrize("path", PATHS)
def test_a_head_is_that_of_the_whole_answer(client: httpx.Client, path: str) -> None:
    whole, head = client.get(path, headers=AS_BROWSER), client.head(path, headers=AS_BROWSER)
    assert (head.status_code, head.content) == (200, b"")
    ids = ("date", "x-request-id")
    assert {k: v for k, v in head.headers.items() if k not in ids} == {
        k: v for k, v in whole.headers.items() if k not in ids
    }


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_a_browser_has_is_not_sent_again(client: httpx.Client, path: str) -> None:
    for coding in ("identity", "gzip"):
        headers = AS_BROWSER | {"accept-encoding": coding}
        with client.stream("GET", path, headers=headers) as reply:
            body = b"".join(reply.iter_raw())
        assert reply.headers["cache-control"] == "no-cache"
        assert "accept-encoding" in reply.headers["vary"]
        plain = gzip.decompress(body) if coding == "gzip" else body
        assert plain == FILES[PATHS[path]].plain
        etag = reply.headers["etag"]
        for known in (etag, f'"other", W/{etag}', "*"):
            again = client.get(path, headers=headers | {"if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == etag
        older = client.get(path, headers=headers | {"if-none-match": '"older"'})
        assert older.status_code == 200


def test_compressed_and_plain_files_have_etags_of_their_own(client: httpx.Client) -> None:
    path = f"{PAGE_FOLDER}/app.js"
    etags = {
        client.get(path, headers={"accept-encoding": coding}).headers["etag"]
        for coding in ("identity", "gzip")
    }
    assert len(etags) == 2


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html;q=0, */*"])
def test_programs_are_told_where_to_go_on(client: httpx.Client, accept: str) -> None:
    reply = client.get("/", headers={"accept": accept})
    assert reply.headers["content-type"] == "application/json"
    assert "accept" in reply.headers["vary"].split(", ")
    told = reply.json()
    assert told["object"] == "server"
    assert client.get(told["docs"]).status_code == 200
    assert client.get(told["openapi"]).status_code == 200
    assert client.get(told["models"], headers={"x-api-key": "key-of-ann"}).status_code == 200


def test_the_document_tells_both_forms(served: Served) -> None:
    assert served.client.get("/", headers=AS_BROWSER).text.startswith("<!DOCTYPE html>")
    assert served.client.get("/").json()["object"] == "server"
    assert not any(each.startswith(PAGE_FOLDER) for each in paths_of(served))


def paths_of(served: Served) -> list[str]:
    return list(served.client.get("/openapi.json").json()["paths"])


@pytest.mark.parametrize("path", PATHS)
def test_other_methods_are_refused(client: httpx.Client, path: str) -> None:
    reply = client.post(path)
    assert reply.status_code == 405
    assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_what_the_page_calls_wants_the_key(client: httpx.Client) -> None:
    for path in ("/v1/models", "/v1/requests", "/v1/loads", "/v1/server_info"):
        assert client.get(path).status_code == 401


def status_of(url: str, target: str) -> tuple[int, bytes]:
    """The status and the body for a target that no client would send so."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection((host, port), timeout=10) as connection:
        head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "target",
    [
        *("/page/../files.py", "/page/..%2ffiles.py", "/page/%2e%2e/files.py", "/page//app.js"),
        *("/page/../../../etc/passwd", "/page/..\\files.py", "/page/app.js/", "/page/app.js%00"),
        *("/page/", "/page", "/page/index.html", "/page/./app.js", "/page/APP.JS", "//page/app.js"),
        *("/page/static/app.js", "/page/../v1/models", "/page/%2e%2e/v1/models", "/page/.."),
    ],
)
def test_nothing_else_lies_below_the_path_of_the_files(guarded: Served, target: str) -> None:
    status, body = status_of(guarded.url, target)
    assert status in (400, 401, 404), body
    assert b"error" in body


@given(name=st.text(st.characters(codec="utf-8"), max_size=12))
def test_only_the_names_of_files_are_found(guarded: Served, name: str) -> None:
    status, _ = status_of(guarded.url, f"{PAGE_FOLDER}/{quote(name, safe='/')}")
    assert (status == 200) == (name in FILES and name != INDEX)


def test_a_server_may_be_without_the_page() -> None:
    with serving(replace(plain_config(), has_page=False)) as served:
        for path in PATHS:
            reply = httpx.get(served.url + path, headers=AS_BROWSER)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
        assert served.complete(prompt="x", max_tokens=1).status_code == 200


def test_a_name_that_is_not_the_servers_gets_no_page(served: Served) -> None:
    reply = httpx.get(served.url, headers=AS_BROWSER | {"host": "evil.example.com"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host_not_allowed")
