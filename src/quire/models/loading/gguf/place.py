"""Tells GGUF files, and the folders that stand for them, by their names alone."""

from pathlib import Path

from quire.models.config import CheckpointError

WEIGHTS = "weights.gguf"
"""The link to a file in the folder that stands for it."""
SUFFIX = ".gguf"


def is_gguf(path: Path) -> bool:
    """Return whether a path is that of a GGUF file, by its name."""
    return path.suffix.lower() == SUFFIX


def is_gguf_folder(folder: Path) -> bool:
    """Return whether a folder stands for a GGUF file."""
    return (folder / WEIGHTS).exists()


def only_file_in(folder: Path) -> Path | None:
    """Return the GGUF file of a folder that holds one and no model in safetensors, else None.
    Raises CheckpointError where there are several."""
    if any(folder.glob("*.safetensors")):
        return None
    files = sorted(path for path in folder.iterdir() if is_gguf(path))
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise CheckpointError(f"{folder} holds several GGUF files: give the path of one of {names}")
    return files[0] if len(files) == 1 else None
