"""Reads the files of a checkpoint's tokenizer: from a local folder, or from the hub's cache."""

from pathlib import Path

from quire.engine.grammar.tokenizer_facts import CONFIG, TOKENIZER, TokenizerError, TokenizerFacts
from quire.models.config import CheckpointError
from quire.models.loading.checkpoint import ModelSource, fetch_gguf, local_folder

TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"


def find_folder(model: str, revision: str | None) -> Path:
    """Return the folder with the tokenizer's files; for a name on the hub they are fetched first.
    Raises TokenizerError."""
    source = ModelSource(model, revision)
    try:
        folder = local_folder(source) or fetch_gguf(source, lambda phase, done, total: None)
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error
    if folder is None:
        folder = _fetch(model, revision)
    if not (folder / TOKENIZER).is_file():
        raise TokenizerError(f"no {TOKENIZER} in {folder}; Quire needs one (a 'fast' tokenizer)")
    return folder


def _fetch(model: str, revision: str | None) -> Path:
    # Imported here: a local model needs no hub, and the import takes a second.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            model, revision=revision, allow_patterns=[TOKENIZER, CONFIG, TEMPLATE, GENERATION]
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise TokenizerError(
            f"{model!r} is no local folder, and its tokenizer cannot be fetched: {error}"
        ) from error
    return Path(folder)


def read_chat_template(folder: Path, facts: TokenizerFacts) -> str | None:
    """Return the chat template, None without one; its own file beats the configuration."""
    path = folder / TEMPLATE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if isinstance(facts.chat_template, list):
        named = {each.name: each.template for each in facts.chat_template}
        return named.get("default")
    return facts.chat_template
