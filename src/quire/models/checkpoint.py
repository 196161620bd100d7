"""Where a model's files are: a folder as given, or a hub repository fetched into the hub's cache.

Only safetensors count as weights. A pickle can run code when it is opened, so it never is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quire.models.config import CheckpointError

Progress = Callable[[str, int, int], None]
"""Told (phase, done, total) as loading goes on; `done` never falls within a phase."""

FETCHED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`model`: a folder, or the name of a hub repository, there at `revision`."""

    model: str
    revision: str | None = None
    trust_remote_code: bool = False


def locate(source: ModelSource, on_progress: Progress) -> Path:
    """The folder that holds the configuration and the weights, fetched first if need be."""
    folder = Path(source.model)
    if not folder.is_dir():
        if folder.exists():
            raise CheckpointError(f"{folder} is a file: give the folder that holds it")
        if folder.is_absolute() or source.model.startswith((".", "~")) or len(folder.parts) > 2:
            raise CheckpointError(f"{folder}: there is no such folder")
        folder = _fetch(source, on_progress)
    _check_files(folder)
    return folder


def _check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no config.json: it is not a model's folder")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if not pickles:
        raise CheckpointError(f"{folder} holds no weights: there is no *.safetensors file")
    raise CheckpointError(
        f"{folder} holds its weights only as pickles ({', '.join(pickles)}), which can run code "
        "when opened and are never loaded: convert them to safetensors first"
    )


def _fetch(source: ModelSource, on_progress: Progress) -> Path:
    from quire.models import hub

    def report(done: int, total: int) -> None:
        on_progress("download", done, total)

    patterns = (*FETCHED, "*.py") if source.trust_remote_code else FETCHED
    return hub.fetch(source.model, source.revision or "main", patterns, report)
