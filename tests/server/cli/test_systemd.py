"""What systemd hands over in the environment: taken once, or refused with a reason."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.app.notifier import NotifyTarget
from quire.server.cli.commands import on_inherited
from quire.server.cli.systemd import FIRST_DESCRIPTOR, inherited_socket, notify_target
from quire.server.config import InvalidOption
from quire.server.http.listen import CannotListen, adopt, bind
from tests.server.cli.test_settings import config_of

PID = 4321
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@contextmanager
def handed_over(given: socket.socket | int) -> Iterator[None]:
    """The descriptor is where systemd puts the first, which is put back after the block."""
    kept = os.dup(FIRST_DESCRIPTOR) if is_open(FIRST_DESCRIPTOR) else None
    os.dup2(given if isinstance(given, int) else given.fileno(), FIRST_DESCRIPTOR)
    try:
        yield
    finally:
        if kept is not None:
            os.dup2(kept, FIRST_DESCRIPTOR)
            os.close(kept)
        elif is_open(FIRST_DESCRIPTOR):
            os.close(FIRST_DESCRIPTOR)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def environ_of(
    count: str = "1", pid: str = str(PID), names: str = "quire.socket"
) -> dict[str, str]:
    return {"LISTEN_PID": pid, "LISTEN_FDS": count, "LISTEN_FDNAMES": names, "HOME": "/"}


def test_nothing_handed_over_is_nothing_inherited() -> None:
    environ = {"HOME": "/"}
    assert inherited_socket(environ, PID) is None
    assert notify_target(environ, PID) is None
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_socket_that_listens_is_taken_and_not_handed_on(host: str) -> None:
    environ = environ_of()
    with bind(host, 0) as listener, handed_over(listener):
        taken = inherited_socket(environ, PID)
        assert taken is not None and not is_open(FIRST_DESCRIPTOR)
        with taken:
            assert environ == {"HOME": "/"} and not taken.get_inheritable()
            assert taken.getsockname() == listener.getsockname() and not taken.getblocking()
            with socket.create_connection(taken.getsockname()[:2], 5):
                pass
        with socket.create_connection(listener.getsockname()[:2], 5):
            pass  # it was closed, not shut down


TEXTS = st.one_of(st.integers(-2, 70_000).map(str), st.text(max_size=4), st.just(str(PID)))


@given(st.dictionaries(st.sampled_from(VARIABLES), TEXTS), st.booleans())
def test_any_environment_gives_a_socket_or_a_reason(environ: dict[str, str], good: bool) -> None:
    told = dict(environ)
    with bind("127.0.0.1", 0) as listener, open(os.devnull) as other:
        with handed_over(listener if good else other.fileno()):
            try:
                taken = inherited_socket(environ, PID)
            except InvalidOption as error:
                assert "LISTEN_" in str(error) and len(str(error)) > 20
                is_right = told.get("LISTEN_PID") == str(PID) and told.get("LISTEN_FDS") == "1"
                assert not (is_right and good)
            else:
                says_nothing = not told.get("LISTEN_PID") and not told.get("LISTEN_FDS")
                assert (taken is None) == says_nothing
                if taken is not None:
                    assert int(told["LISTEN_PID"]) == PID and int(told["LISTEN_FDS"]) == 1 and good
                    taken.close()
    assert not environ.keys() & set(VARIABLES)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        (environ_of(pid="17"), "LISTEN_PID is 17, but this process is 4321"),
        (environ_of(pid="x"), "LISTEN_PID is 'x', must be a whole number"),
        (environ_of(count=""), "LISTEN_FDS is '', must be a whole number"),
        (environ_of(count="-1"), "LISTEN_FDS is '-1', must be a whole number"),
        (environ_of(count="0"), r"LISTEN_FDS is 0 .*must be 1"),
        (environ_of(count="2", names="a:b"), r"LISTEN_FDS is 2 \(a:b\), must be 1"),
    ],
)
def test_what_is_wrong_is_named(environ: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        inherited_socket(environ, PID)


def unbound(kind: socket.SocketKind, family: socket.AddressFamily) -> socket.socket:
    return socket.socket(family, kind)


@pytest.mark.parametrize(
    ("family", "kind", "reason"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM, "has no address with a port"),
        (socket.AF_INET, socket.SOCK_DGRAM, "is not of TCP"),
        (socket.AF_INET, socket.SOCK_STREAM, "does not listen: .*Accept=no"),
    ],
)
def test_another_kind_of_socket_is_refused(
    family: socket.AddressFamily, kind: socket.SocketKind, reason: str
) -> None:
    with unbound(kind, family) as other, pytest.raises(CannotListen, match=reason):
        adopt(other.fileno())


def test_what_is_no_socket_is_refused() -> None:
    with open(os.devnull) as file, pytest.raises(CannotListen, match="is none"):
        adopt(file.fileno())
    with pytest.raises(CannotListen, match="cannot be used: descriptor 99999"):
        adopt(99999)


def test_the_address_is_that_of_the_socket_and_no_other_may_be_given() -> None:
    with bind("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        config = on_inherited(listener, {}, {}, config_of())
        assert (config.host, config.port, config.is_socket_inherited) == (host, port, True)
        for arguments, environ, name in (
            ({"host": "0.0.0.0"}, {}, "--host"),
            ({"port": "1"}, {}, "--port"),
            ({}, {"QUIRE_HOST": "0.0.0.0"}, "QUIRE_HOST"),
            ({}, {"QUIRE_PORT": "1"}, "QUIRE_PORT"),
        ):
            with pytest.raises(
                InvalidOption, match=f"{name} is given, but .*:{port}: leave it out"
            ):
                on_inherited(listener, arguments, environ, config_of())


@pytest.mark.parametrize(
    ("environ", "target"),
    [
        ({"NOTIFY_SOCKET": "/run/n"}, NotifyTarget("/run/n", None)),
        ({"NOTIFY_SOCKET": "@n"}, NotifyTarget("@n", None)),
        ({"NOTIFY_SOCKET": ""}, None),
        ({"WATCHDOG_USEC": "5"}, None),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1500000"}, NotifyTarget("@n", 1.5)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "0"}, NotifyTarget("@n", None)),
        (
            {"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"},
            NotifyTarget("@n", None),
        ),
        (
            {"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(PID)},
            NotifyTarget("@n", 2.0),
        ),
    ],
)
def test_where_the_manager_listens(environ: dict[str, str], target: NotifyTarget | None) -> None:
    assert notify_target(environ, PID) == target
    assert environ == {}


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"NOTIFY_SOCKET": "vsock:2:1"}, "NOTIFY_SOCKET is 'vsock:2:1': expected a path"),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC is 'soon'"),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "?"}, "WATCHDOG_PID is"),
    ],
)
def test_a_manager_that_cannot_be_told_is_named(environ: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        notify_target(environ, PID)
