"""Locates a model's files: a given folder or GGUF file, or a hub repository fetched into the hub's
cache.

Only safetensors and GGUF count as weights. A pickle can run code when it is opened, so none ever
is.
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
)
from quire.models.loading.gguf.place import WEIGHTS, is_gguf, only_file_in, part_of
from quire.models.loading.published.place import MODELOPT_CONFIG, quantisation_of

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total) during a load; within a phase `done` never falls."""

FETCHED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
TELLING = ("config.json", "adapter_config.json", "modules.json", MODELOPT_CONFIG)
"""Files that are fetched first: they tell whether the weights can be served at all."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`model` is a folder, a GGUF file, the name of a hub repository, or that of a GGUF file in one
    (`owner/name:folder/file.gguf`), there at `revision`. `packed_file`
    keeps its packed weights from one load to the next."""

    model: str
    revision: str | None = None
    trust_remote_code: bool = False
    packed_file: Path | None = None


def locate(source: ModelSource, on_progress: Progress) -> Path:
    """Return the folder with the configuration and the weights, fetched first if need be.

    Raises CheckpointError or UnsupportedModel.
    """
    folder = check_local(source)
    if folder is None:
        folder = fetch_gguf(source, on_progress) or _fetch(source, on_progress)
        _check_files(folder, source)
    return folder


def locate_config(source: ModelSource) -> Path:
    """Return the folder with the configuration, fetched first if need be; weights need not be
    there, nor in a form that is read. Raises CheckpointError or UnsupportedModel."""
    folder = local_folder(source)
    if folder is None:
        folder = fetch_gguf(source, _ignore) or _fetch_telling(source)
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
    """Return the folder of a local model, or the one that stands for a GGUF file; None if it is the
    name of a hub repository.

    Raises CheckpointError for a path that leads to no model.
    """
    folder = Path(source.model)
    if folder.is_dir():
        file = only_file_in(folder)
        return folder if file is None or file.name == WEIGHTS else _stand_in(file)
    if folder.exists() and is_gguf(folder):
        return _stand_in(folder)
    if folder.exists():
        raise CheckpointError(f"{folder} is a file: give the folder that holds it")
    repository = Path(source.model.partition(":")[0] if is_gguf(folder) else source.model)
    if folder.is_absolute() or source.model.startswith((".", "~")) or len(repository.parts) > 2:
        raise CheckpointError(f"{folder}: there is no such folder")
    return None


def fetch_gguf(source: ModelSource, on_progress: Progress) -> Path | None:
    """Return the folder that stands for a GGUF file of the hub, fetched first; None if `model` does
    not name one. Raises CheckpointError."""
    repository, _, name = source.model.partition(":")
    if not is_gguf(Path(name)):
        return None
    from quire.models.loading import hub

    part = part_of(Path(name))
    wanted = [name] if part is None else [str(Path(name).with_name(each)) for each in part.all()]
    revision = source.revision or "main"
    files = hub.fetch(repository, revision, wanted, partial(on_progress, "download"), ignored=())
    if not (files / name).is_file():
        raise CheckpointError(f"{repository} holds no file {name} on the hub")
    return _stand_in(files / name)


def _stand_in(file: Path) -> Path:
    from quire.models.loading.gguf.folder import folder_for  # brings NumPy and tokenizers

    return folder_for(file)


def _ignore(phase: str, done: int, total: int) -> None:
    """Report no progress."""


def _check_files(folder: Path, source: ModelSource) -> None:
    check_kind(folder, trust_remote_code=source.trust_remote_code)
    check_weights(folder)


def _check_format(folder: Path) -> None:
    """Raise CheckpointError for weights that were quantised in a way that is not read."""
    if quantisation_of(folder) is not None:
        from quire.models.loading.published.weights import format_of  # brings torch

        format_of(folder)


def _fetch_telling(source: ModelSource) -> Path:
    """Return the folder with the files that describe a model of the hub."""
    from quire.models.loading import hub

    folder = hub.fetch(source.model, source.revision or "main", TELLING, lambda done, total: None)
    if not any((folder / name).is_file() for name in TELLING[:2]):
        raise CheckpointError(
            f"{source.model} holds no config.json on the hub: it is not a model as transformers "
            f"stores it; of GGUF files give one, as {source.model}:FILE.gguf"
        )
    return folder


def _fetch(source: ModelSource, on_progress: Progress) -> Path:
    from quire.models.loading import hub

    telling = _fetch_telling(source)
    check_kind(telling, trust_remote_code=source.trust_remote_code)
    _check_format(telling)
    patterns = (*FETCHED, "*.py") if source.trust_remote_code else FETCHED
    return hub.fetch(
        source.model, source.revision or "main", patterns, partial(on_progress, "download")
    )
