"""What the Dockerfile promises, read from its text: no engine is needed to keep these."""

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from tools.requirements import requirements

from quire import __version__
from quire.server.cli import default_model
from quire.server.cli.options import OPTIONS
from tests.tls_files import make_tls_files

ROOT = Path(__file__).parent.parent
CACHES = ("HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Instruction(NamedTuple):
    stage: int
    keyword: str
    text: str


@cache
def instructions() -> tuple[Instruction, ...]:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    whole = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    stage = 0
    found = []
    for line in whole.replace("\\\n", " ").splitlines():
        keyword, _, text = line.strip().partition(" ")
        if keyword:
            stage += keyword == "FROM"
            found.append(Instruction(stage, keyword, text.strip()))
    return tuple(found)


def last_stage(keyword: str) -> list[str]:
    last = instructions()[-1].stage
    return [each.text for each in instructions() if (each.stage, each.keyword) == (last, keyword)]


def environment() -> dict[str, str]:
    return dict(re.findall(r"([A-Z_]+)=(\S+)", " ".join(last_stage("ENV"))))


def test_image_is_built_in_stages_and_the_last_has_no_build_tools_but_for_triton() -> None:
    assert [each.keyword for each in instructions()].count("FROM") == 2
    for text in last_stage("RUN"):
        assert not re.search(r"\bpip\b", text)
        assert "apt-get" not in text or text.startswith('if [ "$VARIANT" = cuda ]; then')


def test_cpu_is_the_default_and_cuda_a_build_argument() -> None:
    builder = [each for each in instructions() if each.stage == 1]
    assert Instruction(1, "ARG", "VARIANT=cpu") in builder
    (choice,) = (each.text for each in builder if each.text.startswith("case "))
    assert re.search(r"\bcpu\).*\bcuda\).*\*\).*exit 1", choice)


@pytest.mark.parametrize(("model", "is_there"), [("smollm2", True), ("bundled", False)])
def test_the_default_model_is_a_build_argument(model: str, is_there: bool, tmp_path: Path) -> None:
    builder = [each for each in instructions() if each.stage == 1]
    (run,) = (each for each in builder if default_model.__name__ in each.text)
    assert Instruction(1, "ARG", "MODEL=smollm2") in builder[: builder.index(run)]
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@" > "$OUT"\n')
    (tmp_path / "python").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MODEL": model, "OUT": f"{tmp_path}/out"}
    subprocess.run(run.text, shell=True, env=env, check=True)
    assert (tmp_path / "out").exists() is is_there
    folder = run.text.split(default_model.__name__)[1].split(";")[0].strip()
    assert folder == "/opt/quire/share/quire"  # of the environment that the image copies


@pytest.mark.parametrize("extras", ["", "otel", "otel,test"])
def test_extras_are_a_build_argument(extras: str, tmp_path: Path) -> None:
    builder = [each for each in instructions() if each.stage == 1]
    (run,) = (each for each in builder if "requirements.txt" in each.text)
    assert Instruction(1, "ARG", "EXTRAS=") in builder[: builder.index(run)]
    writes, installs = run.text.split("&&")
    assert installs.split() == "pip install -c constraints.txt -r requirements.txt".split()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EXTRAS": extras}
    subprocess.run(writes, shell=True, cwd=tmp_path, env=env, check=True)
    written = (tmp_path / "requirements.txt").read_text().splitlines()
    wanted = [each for extra in extras.split(",") if extra for each in requirements(extra)]
    assert written == [*requirements(), *wanted]


def test_user_is_not_root_and_any_user_of_group_0_may_write_the_cache() -> None:
    (user,) = last_stage("USER")
    number, group = user.split(":")
    assert int(number) > 0
    assert group == "0"
    (setup,) = [text for text in last_stage("RUN") if "useradd" in text]
    assert f"chown -R {number}:0 /cache" in setup
    assert "chmod -R g=u /cache" in setup


def test_one_volume_holds_every_cache() -> None:
    assert last_stage("VOLUME") == ["/cache"]
    env = environment()
    assert env["HOME"] == "/cache"
    folders = [env[name] for name in CACHES]
    assert all(folder.startswith("/cache/") for folder in folders)
    (setup,) = [text for text in last_stage("RUN") if "useradd" in text]
    assert all(folder in setup for folder in folders)
    before_volume = [each.keyword for each in instructions() if each.stage == 2]
    assert before_volume.index("RUN") < before_volume.index("VOLUME")


def test_server_is_the_process_that_gets_the_signals() -> None:
    (entry,) = last_stage("ENTRYPOINT")
    assert json.loads(entry) == ["quire", "serve"]
    assert last_stage("STOPSIGNAL") == ["SIGTERM"]
    assert last_stage("CMD") == []


def test_every_variable_is_one_that_an_option_reads() -> None:
    named = set(re.findall(r"QUIRE_[A-Z_]+", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
    assert named == {"QUIRE_HOST", "QUIRE_PORT", "QUIRE_SSL_CERTFILE"}
    assert named <= {option.variable for option in OPTIONS}
    assert last_stage("EXPOSE") == [environment()["QUIRE_PORT"]]
    assert environment()["QUIRE_HOST"] == "0.0.0.0"


def test_version_of_the_image_is_the_package_s() -> None:
    assert f'org.opencontainers.image.version="{__version__}"' in " ".join(last_stage("LABEL"))


def test_label_says_the_health_check_to_formats_that_have_none() -> None:
    (label,) = [text for text in last_stage("LABEL") if text.startswith("quire.healthcheck=")]
    (check,) = last_stage("HEALTHCHECK")
    (as_a_shell_writes_it,) = shlex.split(label.partition("=")[2])
    assert shlex.split(as_a_shell_writes_it) == json.loads(check[check.index("CMD ") + 4 :])


def test_build_context_holds_what_the_build_copies() -> None:
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for each in instructions()
        if each.keyword == "COPY" and not each.text.startswith("--from")
        for source in each.text.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


class LivezHandler(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


class DeadHandler(LivezHandler):
    status = 503


@contextmanager
def serving(handler: type[LivezHandler], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("handler", "healthy"), [(LivezHandler, True), (DeadHandler, False)])
def test_health_check_asks_livez_on_the_configured_port(
    handler: type[LivezHandler], healthy: bool
) -> None:
    (check,) = last_stage("HEALTHCHECK")
    program, *arguments = json.loads(check[check.index("CMD ") + 4 :])
    assert program == "python"
    with serving(handler) as port:
        assert (asked(arguments, QUIRE_PORT=str(port)) == 0) is healthy


def asked(arguments: list[str], **environ: str) -> int:
    """Ask for health as the image does; the exit code."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, timeout=30).returncode


def test_health_check_asks_by_tls_where_the_server_speaks_it(tmp_path: Path) -> None:
    (check,) = last_stage("HEALTHCHECK")
    _, *arguments = json.loads(check[check.index("CMD ") + 4 :])
    files = make_tls_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server_cert, files.server_key)
    with serving(LivezHandler, context) as port:
        assert asked(arguments, QUIRE_PORT=str(port), QUIRE_SSL_CERTFILE="any") == 0
        assert asked(arguments, QUIRE_PORT=str(port)) != 0


def test_check_of_the_image_is_skipped_with_the_reason_where_programs_are_missing() -> None:
    command = [sys.executable, "-m", "tools.image", ".image"]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(
        r"image-check skipped: (it needs root, .*|buildah is not installed: .*)\n", done.stdout
    )
