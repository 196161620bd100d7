"""Locates a model's files: a given folder, or a hub repository fetched into the hub's cache.

Only safetensors count as weights. A pickle can run code when it is opened, so none ever is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quire.models.config import CheckpointError
from quire.models.loading.checkpoint_kind import (
    check_has_config,
    check_kind,
    check_model_kind,
    check_weights,
    gguf_refusal,
)

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total) during a load; within a phase `done` never falls."""

FETCHED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
TELLING = ("config.json", "adapter_config.json", "modules.json")
"""Files that are fetched first: they tell whether the weights can be served at all."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`model` is a folder, or the name of a hub repository, there at `revision`."""

    model: str
    revision: str | None = None
    trust_remote_code: bool = False


def locate(source: ModelSource, on_progress: Progress) -> Path:
    """Return the folder with the configuration and the weights, fetched first if need be.

    Raises CheckpointError or UnsupportedModel.
    """
    folder = check_local(source)
    if folder is None:
        folder = _fetch(source, on_progress)
        _check_files(folder, source)
    return folder


def locate_config(source: ModelSource) -> Path:
    """Return the folder with the configuration, fetched first if need be; weights need not be
    there, nor in a form that is read. Raises CheckpointError or UnsupportedModel."""
    folder = local_folder(source)
    if folder is None:
        folder = _fetch_telling(source)
    check_has_config(folder)
    check_model_kind(folder, trust_remote_code=source.trust_remote_code)
    return folder


def check_local(source: ModelSource) -> Path | None:
    """Return the folder of a local model, checked as `locate` would; None for one on the hub."""
    folder = local_folder(source)
    if folder is not None:
        _check_files(folder, source)
    return folder


def local_folder(source: ModelSource) -> Path | None:
    """Return the folder of a local model, or None if it is the name of a hub repository.

    Raises CheckpointError for a path that leads to no folder.
    """
    folder = Path(source.model)
    if folder.is_dir():
        return folder
    if folder.exists() and folder.suffix.lower() == ".gguf":
        raise CheckpointError(gguf_refusal(folder, "is a GGUF file"))
    if folder.exists():
        raise CheckpointError(f"{folder} is a file: give the folder that holds it")
    if folder.is_absolute() or source.model.startswith((".", "~")) or len(folder.parts) > 2:
        raise CheckpointError(f"{folder}: there is no such folder")
    return None


def _check_files(folder: Path, source: ModelSource) -> None:
    check_kind(folder, trust_remote_code=source.trust_remote_code)
    check_weights(folder)


def _fetch_telling(source: ModelSource) -> Path:
    """Return the folder with the files that tell what a model of the hub is."""
    from quire.models.loading import hub

    folder = hub.fetch(source.model, source.revision or "main", TELLING, lambda done, total: None)
    if not any((folder / name).is_file() for name in TELLING[:2]):
        raise CheckpointError(
            f"{source.model} holds no config.json on the hub: it is not a model as transformers "
            "stores it (GGUF and other formats are not read)"
        )
    return folder


def _fetch(source: ModelSource, on_progress: Progress) -> Path:
    from quire.models.loading import hub

    check_kind(_fetch_telling(source), trust_remote_code=source.trust_remote_code)
    patterns = (*FETCHED, "*.py") if source.trust_remote_code else FETCHED
    return hub.fetch(
        source.model, source.revision or "main", patterns, partial(on_progress, "download")
    )
