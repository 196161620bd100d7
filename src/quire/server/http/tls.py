"""TLS from the files that the options name. What cannot be used is told in a line, at the start."""

import ssl

from quire.server.config import CertReqs, ServerConfig

_MODES = {
    CertReqs.NONE: ssl.CERT_NONE,
    CertReqs.OPTIONAL: ssl.CERT_OPTIONAL,
    CertReqs.REQUIRED: ssl.CERT_REQUIRED,
}


class TLSError(Exception):
    """The files cannot be used; the text names the option, the file and the reason."""


def build_tls(config: ServerConfig) -> ssl.SSLContext | None:
    """Return what connections are secured with; None for a server that speaks plain HTTP. Raises
    TLSError."""
    if config.ssl_certfile is None:
        return None
    keyfile = config.ssl_keyfile or config.ssl_certfile
    for option, path in (
        ("--ssl-certfile", config.ssl_certfile),
        ("--ssl-keyfile", keyfile),
        ("--ssl-ca-certs", config.ssl_ca_certs),
    ):
        _check_readable(option, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = _MODES[config.ssl_cert_reqs]
    password = config.ssl_keyfile_password or ""  # OpenSSL would ask for one at the terminal
    try:
        context.load_cert_chain(config.ssl_certfile, keyfile, lambda: password)
    except ssl.SSLError as error:
        where = f"--ssl-certfile {config.ssl_certfile}, --ssl-keyfile {keyfile}"
        raise TLSError(f"{where}: {_why_not_loaded(error, config, keyfile)}") from None
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except ssl.SSLError:
            message = f"--ssl-ca-certs {config.ssl_ca_certs}: no certificate is in it as PEM"
            raise TLSError(message) from None
    return context


def _check_readable(option: str, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise TLSError(f"{option}: cannot read {path}: {error.strerror}") from None


def _why_not_loaded(error: ssl.SSLError, config: ServerConfig, keyfile: str) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    with open(keyfile, "rb") as file:
        is_encrypted = b"ENCRYPTED" in file.read()
    if not is_encrypted:
        return "no certificate with a key is in it as PEM"
    if config.ssl_keyfile_password is None:
        return "the key is encrypted: give --ssl-keyfile-password"
    return "the key is encrypted, and --ssl-keyfile-password does not open it"
