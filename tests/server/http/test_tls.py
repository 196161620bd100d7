"""TLS: what is served over it, who must bring a certificate, and who cannot hold others up."""

import re
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from quire.server.config import CertReqs, HttpLimits, InvalidOption, ServerConfig
from quire.server.http.tls import TLSError, build_tls
from tests.server.cli.test_settings import config_of
from tests.server.served import Served, plain_config, serving
from tests.tls_files import PASSWORD, TLSFiles, make_tls_files

HEAD_TIMEOUT_S = 1.5
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a handshake."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    return make_tls_files(tmp_path_factory.mktemp("tls"))


def config_with(files: TLSFiles) -> ServerConfig:
    return replace(
        plain_config(),
        ssl_certfile=str(files.server_cert),
        ssl_keyfile=str(files.server_key),
        http=HttpLimits(head_timeout_s=HEAD_TIMEOUT_S, linger_s=1.0),
    )


@pytest.fixture(scope="module")
def secured(files: TLSFiles) -> Iterator[Served]:
    with serving(config_with(files), trust=files.client_context()) as served:
        yield served


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), 10)


def secure(served: Served, files: TLSFiles) -> ssl.SSLSocket:
    return files.client_context().wrap_socket(connect(served), server_hostname="localhost")


def read_all(client: socket.socket) -> bytes:
    """Whatever comes until the other end closes."""
    got = b""
    while data := client.recv(1 << 16):
        got += data
    return got


def is_ended(client: socket.socket, within_s: float) -> bool:
    client.settimeout(within_s)
    try:
        return read_all(client) is not None
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_answers_and_streams_come_over_tls(secured: Served) -> None:
    assert secured.url.startswith("https://")
    assert secured.complete(prompt=[5, 6], max_tokens=4).status_code == 200
    text = secured.complete(prompt=[5, 6], max_tokens=4, stream=True).text
    assert text.endswith("data: [DONE]\n\n")
    long = secured.client.post("/tokenize", json={"prompt": "once upon a time " * 5000})
    assert long.json()["count"] > 5000


def test_only_http_1_1_is_offered(secured: Served, files: TLSFiles) -> None:
    context = files.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(connect(secured), server_hostname="localhost") as client:
        assert client.selected_alpn_protocol() == "http/1.1"
        assert client.version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize("sent", [b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"\0" * 100, b"\n"])
def test_who_speaks_no_tls_is_told_nothing_and_leaves_no_trace(
    secured: Served, sent: bytes
) -> None:
    with connect(secured) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert is_ended(client, within_s=5)
    assert secured.client.get("/livez").status_code == 200


def test_a_handshake_that_stalls_holds_nobody_up_and_ends(secured: Served) -> None:
    clients = [connect(secured) for _ in range(50)]
    try:
        for client in clients:
            client.sendall(HELLO)
        began = time.monotonic()
        for _ in range(20):
            assert secured.client.get("/livez").status_code == 200
        assert time.monotonic() - began < HEAD_TIMEOUT_S
        assert all(is_ended(client, within_s=3 * HEAD_TIMEOUT_S) for client in clients)
        assert time.monotonic() - began >= HEAD_TIMEOUT_S / 2
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("more", [b"", b"x" * 3_000_000])
def test_an_error_arrives_before_the_connection_ends(
    secured: Served, files: TLSFiles, more: bytes
) -> None:
    with secure(secured, files) as client:
        client.sendall(b"GET / HTTP/1.1\r\nno colon here\r\n\r\n" + more)
        head = client.recv(1 << 16)
        assert head.startswith(b"HTTP/1.1 400 ")
        while b"invalid_http" not in head:
            head += client.recv(1 << 16)
        assert is_ended(client, within_s=5)


def test_a_head_that_stalls_is_answered(secured: Served, files: TLSFiles) -> None:
    with secure(secured, files) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\n")
        assert b"408" in client.recv(100)


def test_connections_that_break_off_leave_the_server_well(secured: Served, files: TLSFiles) -> None:
    for _ in range(20):
        client = secure(secured, files)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        client.detach()
        with secure(secured, files) as other:
            other.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert b'"alive"' in read_all(other)


def test_clients_bring_certificates_where_they_are_required(files: TLSFiles) -> None:
    required = replace(
        config_with(files), ssl_ca_certs=str(files.authority), ssl_cert_reqs=CertReqs.REQUIRED
    )
    with serving(required, trust=files.client_context(with_certificate=True)) as served:
        assert served.complete(prompt="x", max_tokens=1).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{served.url}/livez", verify=files.client_context())
        assert served.client.get("/livez").status_code == 200
    optional = replace(required, ssl_cert_reqs=CertReqs.OPTIONAL)
    with serving(optional, trust=files.client_context(with_certificate=True)) as served:
        assert served.client.get("/livez").status_code == 200
        without = httpx.get(f"{served.url}/livez", verify=files.client_context())
        assert without.status_code == 200


def test_a_locked_key_opens_with_its_password_alone(files: TLSFiles) -> None:
    locked = replace(config_with(files), ssl_keyfile=str(files.locked_key))
    for password in (None, "wrong"):
        with pytest.raises(TLSError, match="encrypted"):
            build_tls(replace(locked, ssl_keyfile_password=password))
    opened = replace(locked, ssl_keyfile_password=PASSWORD)
    with serving(opened, trust=files.client_context()) as served:
        info = served.client.get("/v1/server_info")
    assert PASSWORD not in info.text + repr(opened)
    assert info.json()["config"]["ssl_certfile"] == str(files.server_cert)


def test_files_that_cannot_be_used_are_named_in_a_line(files: TLSFiles, tmp_path: Path) -> None:
    empty, garbage = tmp_path / "empty", tmp_path / "garbage"
    empty.write_bytes(b"")
    garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n")
    good = config_with(files)
    for config, what in (
        (replace(good, ssl_certfile=str(tmp_path / "none")), "--ssl-certfile: cannot read .*none"),
        (replace(good, ssl_keyfile=str(tmp_path)), "--ssl-keyfile: cannot read .*: Is a directory"),
        (replace(good, ssl_certfile=str(empty)), "--ssl-certfile .*empty.*"),
        (replace(good, ssl_certfile=str(garbage)), "--ssl-certfile .*garbage.*"),
        (replace(good, ssl_keyfile=str(files.client_key)), "does not belong to the certificate"),
        (replace(good, ssl_keyfile=None), "--ssl-certfile .*server.pem.*"),
        (replace(good, ssl_ca_certs=str(empty)), "--ssl-ca-certs .*empty.*"),
    ):
        with pytest.raises(TLSError, match=what) as refused:
            build_tls(config)
        assert re.fullmatch(r"[^\n]+", str(refused.value))
    assert build_tls(plain_config()) is None


def test_options_that_do_not_go_together_are_refused() -> None:
    for flags, why in (
        (("--ssl-keyfile", "k"), "--ssl-keyfile is given without --ssl-certfile"),
        (("--ssl-cert-reqs", "2"), "--ssl-cert-reqs is given without"),
        (("--ssl-certfile", "c", "--ssl-cert-reqs", "required"), "--ssl-ca-certs is to say"),
        (("--ssl-certfile", "c", "--ssl-cert-reqs", "3"), "expected one of none, optional"),
    ):
        with pytest.raises(InvalidOption, match=why):
            config_of(*flags)
    config = config_of("--ssl-certfile", "c", "--ssl-ca-certs", "a", "--ssl-cert-reqs", "1")
    assert (config.scheme, config.ssl_cert_reqs) == ("https", CertReqs.OPTIONAL)
    assert config_of().scheme == "http"
