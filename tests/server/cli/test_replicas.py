"""`--replicas` and its kin: what goes together, and a server without Ray."""

import subprocess
import sys

import pytest

from quire.engines.ray.config import ReplicaRouting
from quire.extras import how_to_install
from quire.server.cli.main import main
from quire.server.config import InvalidOption
from tests.server.cli.test_settings import config_of

USAGE_ERROR = 2


def test_replicas_are_read() -> None:
    assert not config_of().has_replicas
    config = config_of("--replicas", "2", "--replica-routing", "load")
    assert (config.replicas, config.max_replicas) == (2, None)
    assert config.has_replicas
    assert config.replica_routing is ReplicaRouting.LOAD
    assert config_of(QUIRE_MAX_REPLICAS="3").has_replicas


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--replicas", "0"), "--replicas"),
        (("--replicas", "3", "--max-replicas", "2"), "--max-replicas is 2, less than --replicas"),
        (("--replicas", "2", "--enable-kv-cache-events"), "--enable-kv-cache-events"),
        (("--replicas", "2", "--kv-transfer-listen", "127.0.0.1:7100"), "--kv-transfer-listen"),
        (
            ("--model", "a", "--model", "b", "--kv-transfer-listen", "127.0.0.1:7100"),
            "--kv-transfer-listen is 127.0.0.1:7100 for several models",
        ),
    ],
)
def test_what_cannot_be_is_named(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        config_of(*flags)


def test_without_ray_it_is_said_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # Python then finds no such module
    assert main(["serve", "--replicas", "2"]) == USAGE_ERROR
    assert how_to_install("ray") in capsys.readouterr().err


def test_nothing_of_ray_is_imported_without_replicas() -> None:
    modules = "quire.server.cli.commands, quire.server.app.serve, quire.engines.ray.replicas"
    tested = f"import sys, {modules}; print('ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", tested], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
