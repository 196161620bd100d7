"""Certificates for tests, made by the openssl command: an authority, a server's and a client's."""

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SUBJECT_ALT_NAME = "subjectAltName=DNS:localhost,IP:127.0.0.1"
PASSWORD = "of the key"


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """Paths of PEM files. `locked_key` is the server's key, encrypted with PASSWORD."""

    authority: Path
    server_cert: Path
    server_key: Path
    locked_key: Path
    client_cert: Path
    client_key: Path

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        """What a client of the server trusts, and brings."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if with_certificate:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


def make_tls_files(folder: Path) -> TLSFiles:
    """Make all files in a folder. Skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    authority, authority_key = folder / "authority.pem", folder / "authority-key.pem"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", "/CN=tests", "-days", "2", "-out", authority, "-keyout", authority_key),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    for name in ("server", "client"):
        cert, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-CA", authority, "-CAkey", authority_key, "-subj", f"/CN={name}", "-days", "2"),
            *("-addext", SUBJECT_ALT_NAME, "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-out", cert, "-keyout", key),
        )
    locked = folder / "locked-key.pem"
    _openssl(
        "ec",
        "-in",
        folder / "server-key.pem",
        "-aes256",
        "-passout",
        f"pass:{PASSWORD}",
        "-out",
        locked,
    )
    return TLSFiles(
        authority,
        folder / "server.pem",
        folder / "server-key.pem",
        locked,
        folder / "client.pem",
        folder / "client-key.pem",
    )


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)
