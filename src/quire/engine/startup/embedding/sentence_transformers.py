"""Reads the files by which sentence-transformers knows how a checkpoint's embeddings are made:
`modules.json`, the configuration of its pooling, and the longest text it was made for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quire.models.config import CheckpointError
from quire.scheduler.request import PoolingKind

MODULES, TEXTS = "modules.json", "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
POOLING = "1_Pooling"
"""The folder of the pooling, unless `modules.json` says otherwise."""
MODES: Mapping[str, PoolingKind] = {
    "pooling_mode_lasttoken": PoolingKind.LAST,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_cls_token": PoolingKind.CLS,
    "lasttoken": PoolingKind.LAST,
    "mean": PoolingKind.MEAN,
    "cls": PoolingKind.CLS,
}
"""Older files have a flag for each kind of pooling, newer ones its name."""

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """The facts in the files; each is None where they say nothing of it.

    why_not: why embeddings as they describe them cannot be computed, empty where they can.
    default_prompt: the text that the library puts before every input.
    """

    pooling: PoolingKind | None = None
    is_normalized: bool | None = None
    max_len: int | None = None
    default_prompt: str | None = None
    why_not: str = ""


def read_sentence_files(folder: Path) -> SentenceFiles:
    """Return the settings in the files of `folder`, nothing without files. Raises CheckpointError
    for files that cannot be read."""
    modules = _modules(folder)
    texts = _object(folder / TEXTS)
    length = texts.get("max_seq_length")
    pooling, why_not = _pooling(folder, modules)
    if texts.get("do_lower_case") is True:
        why_not = why_not or f"{TEXTS} wants texts in lower case"
    return SentenceFiles(
        pooling,
        "Normalize" in modules if modules else None,
        length if type(length) is int and length > 0 else None,
        _default_prompt(folder),
        why_not,
    )


def _modules(folder: Path) -> dict[str, str]:
    """Return the folders of the modules by the last part of their types, in their order."""
    listed = _read(folder / MODULES)
    if not isinstance(listed, list):
        return {}
    entries = [each for each in listed if isinstance(each, dict)]
    return {
        str(each.get("type", "")).rpartition(".")[2]: str(each.get("path", "")) for each in entries
    }


def _pooling(folder: Path, modules: Mapping[str, str]) -> tuple[PoolingKind | None, str]:
    """Return the kind of pooling, and why it, or another module, cannot be computed."""
    other = [name for name in modules if name not in ("Transformer", "Pooling", "Normalize")]
    why_not = f"its {MODULES} has {', '.join(other)}" if other else ""
    config = _object(folder / modules.get("Pooling", POOLING) / "config.json")
    named = config.get("pooling_mode")
    modes = [
        name for name, value in config.items() if name.startswith("pooling_mode_") and value is True
    ]
    if isinstance(named, str):
        modes = [named]
    if not modes:
        is_missing = "Pooling" in modules
        return None, why_not or ("its pooling has no configuration" if is_missing else "")
    kind = MODES.get(modes[0]) if len(modes) == 1 else None
    if kind is None:
        why_not = why_not or f"its pooling is {', '.join(modes)}"
    return kind, why_not


def _default_prompt(folder: Path) -> str | None:
    config = _object(folder / PROMPTS)
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    return prompt if isinstance(prompt, str) and prompt else None


def _object(path: Path) -> Fields:
    value = _read(path)
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> object:
    """Return the JSON of a file, None where there is no such file. Raises CheckpointError."""
    if not path.is_file():
        return None
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    return value
