"""The promises of the image: a health check in both formats, text for any user, an end in order."""

import json
import shlex
import subprocess
import time
from pathlib import Path

from tools.image.build import FORMATS, Buildah
from tools.image.container import USER, Container, running

LABEL = "quire.healthcheck"
READY_S = 120
ASK_READY = """
import os, urllib.request
urllib.request.urlopen("http://127.0.0.1:" + os.environ["QUIRE_PORT"] + "/readyz")
"""
ASK = """
import json, os, sys, urllib.request
url = "http://127.0.0.1:" + os.environ["QUIRE_PORT"] + "/v1/completions"
body = {"prompt": "Once upon a time", "max_tokens": int(sys.argv[1])}
body |= {"ignore_eos": True, "stream": True}
head = {"Content-Type": "application/json"}
text, reason = "", None
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as lines:
    for line in lines:
        if line.startswith(b"data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            text, reason = text + choice["text"], choice["finish_reason"]
            print("more", flush=True)
print(json.dumps({"text": text, "reason": reason}))
"""
"""A program that runs in the container: it says "more" for each event, and last what it got."""


def check_health_check(buildah: Buildah) -> None:
    """The docker format keeps HEALTHCHECK; the label says the same command in both."""
    configs = [buildah.config(form) for form in FORMATS]
    command = configs[0].health_check
    assert command, "the docker format holds no health check"
    for form, config in zip(FORMATS, configs, strict=True):
        assert shlex.split(config.labels[LABEL]) == command, f"{form}: {config.labels}"
    print(f"health check in {' and '.join(FORMATS)}: {shlex.join(command)}", flush=True)


def check_running(buildah: Buildah, cache: Path) -> None:
    """The container serves, is healthy, drains and ends well, and writes nowhere but `/cache`."""
    config = buildah.config("docker")
    root = buildah.mount()
    subprocess.run(["cp", "--archive", root / "cache", cache], check=True)
    with running(root, cache, config.environment, config.entrypoint) as container:
        wait_ready(container)
        assert container.runs(*config.health_check), "the health check fails"
        assert not container.runs(*config.health_check, QUIRE_PORT="1"), "it says yes to no server"
        answer = end_of(ask(container, 20))
        assert answer["text"], answer
        print(f"user {USER} of group 0 got {answer['text']!r}", flush=True)
        check_read_only(container)
        check_drain(container)
    written = sorted(each.relative_to(cache) for each in cache.rglob("*") if each.is_file())
    print(f"written below /cache: {', '.join(map(str, written)) or 'nothing'}", flush=True)


def wait_ready(container: Container) -> None:
    """Raises AssertionError with the log where it does not become ready."""
    deadline = time.monotonic() + READY_S
    while not container.runs("python", "-c", ASK_READY):
        assert container.process.poll() is None, f"it has ended:\n{container.log()}"
        assert time.monotonic() < deadline, f"it is not ready:\n{container.log()}"
        time.sleep(0.5)


def ask(container: Container, max_tokens: int) -> subprocess.Popen[str]:
    """A request that runs."""
    command = container.command("python", "-c", ASK, str(max_tokens))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def end_of(request: subprocess.Popen[str]) -> dict[str, str]:
    """The answer that a request got."""
    said, _ = request.communicate(timeout=READY_S)
    assert request.returncode == 0, said
    found: dict[str, str] = json.loads(said.splitlines()[-1])
    return found


def check_read_only(container: Container) -> None:
    """Its user can write below `/cache`, and nowhere else that is there."""
    assert container.runs("touch", "/cache/written"), "/cache cannot be written to"
    for place in ("/", "/tmp", "/dev", "/opt/quire", "/var/tmp"):
        assert not container.runs("touch", f"{place}/written"), f"{place} can be written to"


def check_drain(container: Container) -> None:
    """SIGTERM in the middle of a stream: the stream is completed, then the exit code is 0."""
    request = ask(container, 400)
    assert request.stdout is not None
    assert request.stdout.readline() == "more\n"
    code = container.stop()
    answer = end_of(request)
    assert answer["reason"] == "length", answer
    assert code == 0, f"exit code {code}:\n{container.log()}"
    print("SIGTERM: the stream was completed, exit code 0", flush=True)
