"""All calls of the Hugging Face hub. Slow to import, so import this module late."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from huggingface_hub import errors, snapshot_download
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from quire.models.config import CheckpointError

NEVER_FETCHED = ("[!1]*/*", "1[!_]*/*", "1_[!P]*/*", "consolidated*", "*.fp16.*")
"""Patterns of subfolders of a repository but 1_Pooling, which says how embeddings are made, and of
second copies of the weights."""

FileCount = Callable[[int, int], None]


def fetch(
    name: str,
    revision: str,
    patterns: Sequence[str],
    on_file: FileCount,
    ignored: Sequence[str] = NEVER_FETCHED,
) -> Path:
    """Fetch files into the hub's cache and return their folder; offline, what is already there.

    Raises CheckpointError.
    """
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=list(ignored),
            tqdm_class=_silent_bar(on_file),
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{name} is gated: accept its terms at https://hf.co/{name} and set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} has no revision {revision}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise CheckpointError(
            f"{name} is neither a folder here nor a model on the hub (if private, set HF_TOKEN)"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"{name} is neither a folder here nor in the hub's cache, and the hub is out of reach"
        ) from error
    return Path(folder)


def _silent_bar(on_file: FileCount) -> type[tqdm]:
    """Return a class of progress bars for the hub, which counts whole files and prints nothing."""

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self.unit != "B" and self.total:
                on_file(int(self.n), int(self.total))
            return shown

    return SilentBar
