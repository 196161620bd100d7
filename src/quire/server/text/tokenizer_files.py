"""Reads the files of a checkpoint's tokenizer: from a local folder, or from the hub's cache."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"


class TokenizerError(Exception):
    """The checkpoint has no tokenizer that Quire can read; the text says what is missing."""


class NamedTemplate(msgspec.Struct):
    name: str
    template: str


class TokenContent(msgspec.Struct):
    content: str


class TokenizerFacts(msgspec.Struct):
    """The part of `tokenizer_config.json` that matters here. What is put around a text is said by
    `tokenizer.json` alone: transformers 5 reads no `add_bos_token` beside it either."""

    bos_token: str | TokenContent | None = None
    eos_token: str | TokenContent | None = None
    pad_token: str | TokenContent | None = None
    unk_token: str | TokenContent | None = None
    additional_special_tokens: list[str | TokenContent] | None = None
    extra_special_tokens: list[str | TokenContent] | dict[str, str | TokenContent] | None = None
    chat_template: str | list[NamedTemplate] | None = None

    def special_tokens(self) -> Mapping[str, str]:
        """Return the tokens that templates know by name."""
        named = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "pad_token": self.pad_token,
            "unk_token": self.unk_token,
        }
        return {name: _content(token) for name, token in named.items() if token is not None}

    def all_special_tokens(self) -> set[str]:
        """Return every token that the configuration calls special."""
        extra = self.extra_special_tokens or []
        more = [*(extra.values() if isinstance(extra, dict) else extra)]
        more += self.additional_special_tokens or []
        return {*self.special_tokens().values(), *map(_content, more)}


def _content(token: str | TokenContent) -> str:
    return token if isinstance(token, str) else token.content


def find_folder(model: str, revision: str | None) -> Path:
    """Return the folder with the tokenizer's files; for a name on the hub they are fetched first.
    Raises TokenizerError."""
    folder = Path(model)
    if not folder.is_dir():
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


def read_facts(folder: Path) -> TokenizerFacts:
    """Read `tokenizer_config.json`, which may be missing. Raises TokenizerError."""
    path = folder / CONFIG
    if not path.is_file():
        return TokenizerFacts()
    try:
        return msgspec.json.decode(path.read_bytes(), type=TokenizerFacts)
    except msgspec.DecodeError as error:
        raise TokenizerError(f"cannot read {path}: {error}") from error


def read_chat_template(folder: Path, facts: TokenizerFacts) -> str | None:
    """Return the chat template, None without one; its own file beats the configuration."""
    path = folder / TEMPLATE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if isinstance(facts.chat_template, list):
        named = {each.name: each.template for each in facts.chat_template}
        return named.get("default")
    return facts.chat_template
